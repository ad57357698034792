// Derives the backward pass of a layer's graph from the op table's rules, and so finds which forward tensors backward needs.
#pragma once

#include <set>
#include <vector>

#include "ops/graph.h"

namespace foresail {

struct Differentiated {
  Graph graph;            ///< forward nodes, then backward nodes; tensors of both
  int forward_nodes = 0;  ///< how many of graph.nodes are forward
  std::set<int> saved;    ///< forward activations that backward reads
  /// Weights whose gradient accumulators hold only this tensor-parallel rank's share (index into graph.weights).
  std::set<int> partial_weight_gradients;
  /// Weights of KV heads that several tensor-parallel ranks hold: their gradient is the sum over the group kv_copies.
  std::set<int> copied_weight_gradients;
};

/// Reverse-mode differentiation of a sharded graph. Backward starts from the gradient of layer_output (role
/// output_gradient) or from the loss; it ends in the gradient of layer_input (role input_gradient), if there is one.
/// A cross_entropy_loss node is replaced by its derivative, which accumulates the loss too. What only the
/// gradients of frozen weights need is left out.
Differentiated differentiate(const Graph& forward);

/// Backward nodes that serve nothing but gradients of the weights of matrix products, by index into graph.nodes: a
/// zero-bubble schedule runs them in Phase::weight_gradient.
std::set<int> weight_gradient_nodes(const Differentiated& layer);

}  // namespace foresail
