// The metrics record of a step: f64 numbers in the arena that kernels add to and the host reads.
#pragma once

#include <cstdint>

namespace foresail {

/// Places in the record. The first ones are sums: each rank adds its share, and the step ends with their sum over all
/// ranks. OpKind::clip_scale derives the others.
enum class StepMetric : int32_t {
  loss,            ///< mean cross-entropy
  squared_norm,    ///< of the gradients
  auxiliary_loss,  ///< of routers: balance and z losses
  overflow,        ///< rows for experts that found no room: the step is not to be used
  grad_norm,
  clip_factor,  ///< what gradients are multiplied with; 0: the update is left out
  count_
};
inline constexpr int64_t kStepMetrics = static_cast<int64_t>(StepMetric::count_);
/// How many of them are sums.
inline constexpr int64_t kSummedMetrics = static_cast<int64_t>(StepMetric::grad_norm);

constexpr int64_t index_of(StepMetric metric) { return static_cast<int64_t>(metric); }

}  // namespace foresail
