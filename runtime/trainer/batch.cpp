#include "runtime/trainer/batch.h"

#include <cmath>

#include "core/error.h"

namespace foresail {

int64_t global_batch_of(const Program& program) {
  return program.mesh.dp * program.micro_batches * (program.rows_per_micro_batch / program.sequence_length);
}

void fill_batch(Executor& executor, const Program& program, int data_rank, int64_t first_sample,
                const SampleReader& read, std::span<int32_t> unused) {
  const int64_t length = program.sequence_length;
  const int64_t sequences = program.rows_per_micro_batch / length;
  ensure(static_cast<int64_t>(unused.size()) == length, "the unused half of a sample has a place");
  if (executor.tokens(0).empty() && executor.targets(0).empty()) return;
  const auto part = [&](std::span<int32_t> all, int64_t sequence) {
    return all.empty() ? unused : all.subspan(static_cast<size_t>(sequence * length), static_cast<size_t>(length));
  };
  for (int64_t micro_batch = 0; micro_batch < program.micro_batches; ++micro_batch) {
    const std::span<int32_t> tokens = executor.tokens(micro_batch), targets = executor.targets(micro_batch);
    for (int64_t sequence = 0; sequence < sequences; ++sequence) {
      const int64_t index = first_sample + (data_rank * program.micro_batches + micro_batch) * sequences + sequence;
      read(index, part(tokens, sequence), part(targets, sequence));
    }
  }
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
