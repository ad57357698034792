// Which samples of a global batch belong to which rank, and how they get into the arena's data slots.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <type_traits>
#include <utility>

#include "program/program.h"
#include "runtime/data/sample_source.h"
#include "runtime/executor/executor.h"
#include "spec/job.h"

namespace foresail {

/// Where a run's samples come from. `index` counts samples from the start of the run.
class SampleReader {
 public:
  /// Writes sample `index`: S token ids and their S targets, some of them perhaps kMaskedTarget.
  using Read = std::function<void(int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets)>;
  /// How many of its targets count; must not depend on who asks.
  using Count = std::function<int64_t(int64_t index)>;

  SampleReader() = default;
  /// All targets count. Implicit: a lambda is a reader.
  template <typename F>
  requires std::is_invocable_v<F, int64_t, std::span<int32_t>, std::span<int32_t>> SampleReader(F read)
      : read_(std::move(read)) {}
  SampleReader(Read read, Count counted) : read_(std::move(read)), counted_(std::move(counted)) {}

  explicit operator bool() const { return static_cast<bool>(read_); }
  void operator()(int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) const {
    read_(index, tokens, targets);
  }
  int64_t counted_targets(int64_t index, int64_t sequence_length) const {
    return counted_ ? counted_(index) : sequence_length;
  }

 private:
  Read read_;
  Count counted_;
};

/// Sequences of one step over all data-parallel ranks; fewer than their micro-batches hold if the last ones are ragged.
int64_t global_batch_of(const Program& program);

/// What the loss kernels take for a position that does not count.
inline constexpr int32_t kMaskedTarget = kUncountedTarget;

/// Fills the data slots of the rank at `place` for the global batch that starts at `first_sample`. With n sequences per
/// micro-batch, sample j of the batch belongs to dp rank j / (micro_batches * n), and there to micro-batch (j / n) mod
/// micro_batches. The context-parallel ranks of a dp rank share its samples: each takes its positions of every sequence
/// (ops/zigzag.h). Places of a ragged batch beyond global_batch_of get token 0 and kMaskedTarget; no sample is read for
/// them. Ranks whose stage reads neither tokens nor targets read nothing. `sample` is room for one: S tokens, S targets.
void fill_batch(Executor& executor, const Program& program, const MeshCoordinate& place, int64_t first_sample,
                const SampleReader& read, std::span<int32_t> sample);

/// Targets that count in the loss of the global batch that starts at `first_sample`. Every rank finds the same number by
/// itself, whatever the plan: it depends on the data alone.
int64_t counted_targets(const Program& program, int64_t first_sample, const SampleReader& read);

/// The record of optimizer step `step` (1-based) of a run of `total_steps`. Without a valid token the weight of a token is
/// 0: loss and gradients of the step are 0, and the optimizer does with that what it does with any gradient of zero
/// (moments decay, weight decay acts).
StepInputs step_inputs_at(const Job& job, int64_t step, int64_t total_steps, int64_t valid_tokens);

}  // namespace foresail
