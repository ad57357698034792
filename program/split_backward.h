// Backward in two halves (Qi et al. 2023, "Zero Bubble Pipeline Parallelism"): input gradients at once, because the
// previous stage waits for them; weight gradients of matrix products when the pipeline would idle.
#pragma once

#include <set>
#include <vector>

#include "program/autodiff.h"
#include "program/block_layout.h"
#include "program/recompute.h"

namespace foresail {

struct SplitBackward {
  std::vector<PlannedNode> input_nodes;   ///< replayed forward nodes, then backward
  std::vector<PlannedNode> weight_nodes;  ///< data movement made again, then products
  std::set<int> kept;                     ///< forward tensors that the weight half reads where forward left them
  std::set<int> carried;                  ///< tensors that the input half hands to the weight half
};

/// May append copies of the output's gradient and the layer's input to the graph: their own buffers are given up before
/// the weight half runs.
SplitBackward split_backward(Differentiated& layer, const ReplayPlan& plan);

}  // namespace foresail
