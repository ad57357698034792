// What varies from step to step, in one record that lives in the arena: kernels read it from memory, so that a Program
// and its instructions never change during a run.
#pragma once

#include <cstdint>

namespace foresail {

struct StepInputs {
  int64_t step = 1;   ///< 1 for the first optimizer step
  uint64_t seed = 0;  ///< of dropout
  double learning_rate = 0;
  double beta1 = 0.9, beta2 = 0.95;
  double beta1_power = 0.9;   ///< beta1 ** step
  double beta2_power = 0.95;  ///< beta2 ** step
  double epsilon = 1e-8;
  double weight_decay = 0;
  double clip_norm = 0;             ///< 0: no clipping
  double inverse_valid_tokens = 0;  ///< 1 / tokens that count in the loss of the global batch
  double loss_scale = 1;            ///< of all gradients before the norm (Micikevicius et al. 2018, section 3.2)

  /// What the gradient of a token's loss is multiplied with.
  double gradient_weight() const { return inverse_valid_tokens * loss_scale; }
};

/// Where a kernel runs: this rank's coordinates and the micro-batch it works on.
struct KernelContext {
  const StepInputs* step = nullptr;
  int64_t first_row = 0;  ///< row of the global batch (sequence index x whole length) where this micro-batch begins
  int32_t layer = 0;      ///< global layer number
  int32_t tensor_rank = 0;
  int32_t tensor_size = 1;  ///< tensor-parallel degree
  int32_t context_rank = 0;
  int32_t context_size = 1;         ///< context-parallel degree
  int32_t replica_rank = 0;         ///< among the ranks that hold the same shard (without ZeRO: the same weights)
  int32_t expert_replica_rank = 0;  ///< the same of what it holds of experts
  int32_t kv_copies = 1;            ///< tp neighbours that hold the same KV head
};

}  // namespace foresail
