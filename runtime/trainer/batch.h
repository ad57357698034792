// Which samples of a global batch belong to which rank, and how they get into the arena's data slots.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "program/program.h"
#include "runtime/executor/executor.h"
#include "spec/job.h"

namespace foresail {

/// Writes sample `index`: S token ids and their S targets. `index` counts samples from the start of the run.
using SampleReader = std::function<void(int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets)>;

/// Sequences of one step over all data-parallel ranks.
int64_t global_batch_of(const Program& program);

/// Fills the data slots of this rank for the global batch that starts at `first_sample`. Sample j of the batch belongs to
/// data rank j / (micro_batches * micro_batch), and there to micro-batch (j / micro_batch) mod micro_batches. Ranks whose
/// stage reads neither tokens nor targets read nothing; one that reads only one of them lets the other go to `unused`
/// (S ids).
void fill_batch(Executor& executor, const Program& program, int data_rank, int64_t first_sample,
                const SampleReader& read, std::span<int32_t> unused);

/// The record of optimizer step `step` (1-based) of a run of `total_steps`.
StepInputs step_inputs_at(const Job& job, int64_t step, int64_t total_steps, int64_t valid_tokens);

}  // namespace foresail
