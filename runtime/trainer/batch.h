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

/// Sequences of one step over all data-parallel ranks; fewer than their micro-batches hold if the last ones are ragged.
int64_t global_batch_of(const Program& program);

/// What the loss kernels take for a position that does not count.
inline constexpr int32_t kMaskedTarget = -1;

/// Fills the data slots of the rank at `place` for the global batch that starts at `first_sample`. With n sequences per
/// micro-batch, sample j of the batch belongs to dp rank j / (micro_batches * n), and there to micro-batch (j / n) mod
/// micro_batches. The context-parallel ranks of a dp rank share its samples: each takes its positions of every sequence
/// (ops/zigzag.h). Places of a ragged batch beyond global_batch_of get token 0 and kMaskedTarget; no sample is read for
/// them. Ranks whose stage reads neither tokens nor targets read nothing. `sample` is room for one: S tokens, S targets.
void fill_batch(Executor& executor, const Program& program, const MeshCoordinate& place, int64_t first_sample,
                const SampleReader& read, std::span<int32_t> sample);

/// The record of optimizer step `step` (1-based) of a run of `total_steps`.
StepInputs step_inputs_at(const Job& job, int64_t step, int64_t total_steps, int64_t valid_tokens);

}  // namespace foresail
