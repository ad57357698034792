#include "runtime/trainer/batch.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "ops/zigzag.h"

namespace foresail {

namespace {

/// A context-parallel rank's positions of a whole sequence.
void take_positions(std::span<const int32_t> whole, const Mesh& mesh, const MeshCoordinate& place,
                    std::span<int32_t> rows) {
  for (size_t row = 0; row < rows.size(); ++row) {
    rows[row] =
        whole[static_cast<size_t>(zigzag_position(place.cp, mesh.cp, std::ssize(rows), static_cast<int64_t>(row)))];
  }
}

/// One sequence of a micro-batch. `tokens` and `targets` are this rank's rows of it; empty: its stage does not read them.
void read_sequence(const Program& program, const MeshCoordinate& place, int64_t index, const SampleReader& read,
                   std::span<int32_t> tokens, std::span<int32_t> targets, std::span<int32_t> sample) {
  const auto length = static_cast<size_t>(program.sequence_length);
  const bool whole = program.mesh.cp == 1;  // straight to where they are used
  const std::span<int32_t> all_tokens = whole && !tokens.empty() ? tokens : sample.first(length);
  const std::span<int32_t> all_targets = whole && !targets.empty() ? targets : sample.last(length);
  read(index, all_tokens, all_targets);
  if (whole) return;
  take_positions(all_tokens, program.mesh, place, tokens);
  take_positions(all_targets, program.mesh, place, targets);
}

}  // namespace

int64_t global_batch_of(const Program& program) { return program.global_batch; }

void fill_batch(Executor& executor, const Program& program, const MeshCoordinate& place, int64_t first_sample,
                const SampleReader& read, std::span<int32_t> sample) {
  ensure(std::ssize(sample) == 2 * program.sequence_length, "a sample has room for its tokens and targets");
  if (executor.tokens(0).empty() && executor.targets(0).empty()) return;
  const int64_t sequences = sequences_per_micro_batch(program);
  const auto rows = static_cast<size_t>(program.sequence_length / program.mesh.cp);
  const auto part = [&](std::span<int32_t> all, int64_t sequence) {
    return all.empty() ? all : all.subspan(static_cast<size_t>(sequence) * rows, rows);
  };
  for (int64_t micro_batch = 0; micro_batch < program.micro_batches; ++micro_batch) {
    const std::span<int32_t> all_tokens = executor.tokens(micro_batch), all_targets = executor.targets(micro_batch);
    for (int64_t sequence = 0; sequence < sequences; ++sequence) {
      const int64_t index = (place.dp * program.micro_batches + micro_batch) * sequences + sequence;
      const std::span<int32_t> tokens = part(all_tokens, sequence), targets = part(all_targets, sequence);
      if (index < program.global_batch) {
        read_sequence(program, place, first_sample + index, read, tokens, targets, sample);
      } else {
        std::fill(tokens.begin(), tokens.end(), 0);
        std::fill(targets.begin(), targets.end(), kMaskedTarget);
      }
    }
  }
}

int64_t counted_targets(const Program& program, int64_t first_sample, const SampleReader& read) {
  int64_t counted = 0;
  for (int64_t i = 0; i < program.global_batch; ++i) {
    counted += read.counted_targets(first_sample + i, program.sequence_length);
  }
  return counted;
}

StepInputs step_inputs_at(const Job& job, int64_t step, int64_t total_steps, int64_t valid_tokens) {
  const OptimizerJob& optimizer = job.optimizer;
  StepInputs inputs;
  inputs.step = step;
  inputs.seed = static_cast<uint64_t>(job.seed);
  inputs.learning_rate = learning_rate_at(optimizer, step, total_steps);
  inputs.beta1 = optimizer.beta1;
  inputs.beta2 = optimizer.beta2;
  inputs.beta1_power = std::pow(optimizer.beta1, static_cast<double>(step));
  inputs.beta2_power = std::pow(optimizer.beta2, static_cast<double>(step));
  inputs.epsilon = optimizer.epsilon;
  inputs.weight_decay = optimizer.weight_decay;
  inputs.clip_norm = optimizer.clip_norm;
  inputs.inverse_valid_tokens = valid_tokens > 0 ? 1.0 / static_cast<double>(valid_tokens) : 0.0;
  return inputs;
}

}  // namespace foresail
