// What the operators of a router share: one row of logits as a softmax.
#pragma once

#include <cmath>
#include <cstdint>

#include "ops/op.h"

namespace foresail {

/// Probabilities are exp(x - largest) / sum.
struct Softmax {
  float largest = 0, sum = 0;

  Softmax(const float* logits, int64_t experts);
  float inverse() const { return 1 / sum; }
  double log_sum_exp() const { return largest + std::log(double{sum}); }
};

/// y = exp(x - shift) factor.
void scaled_exponentials(const float* x, float shift, float factor, float* y, int64_t count);

inline bool is_sigmoid(const OpAttributes& attributes) { return attributes.scoring == RouterScoring::sigmoid; }
/// An id that is no expert stands for nothing.
inline bool is_expert(int32_t id, int64_t experts) { return id >= 0 && id < experts; }

/// Checks of bind: the experts and choices of a router's operands.
void check_choice(const OpInstance& op, const TensorType& logits, const TensorType& choices);

}  // namespace foresail
