#include "planner/simulator/expert_load.h"

#include <algorithm>
#include <cmath>

namespace foresail {

OpInstance on_busiest_rank(OpInstance op) {
  int64_t& routed = op.attributes.routed_rows;
  if (routed <= 0) return op;
  const int64_t rows = op.inputs.at(0).shape.at(0);
  routed = std::min(rows, static_cast<int64_t>(std::ceil(static_cast<double>(routed) * kExpertImbalance)));
  return op;
}

bool is_expert_product(OpKind kind) {
  return kind == OpKind::expert_linear || kind == OpKind::expert_linear_backward_input ||
         kind == OpKind::expert_linear_backward_weight;
}

}  // namespace foresail
