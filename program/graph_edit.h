// Small steps that every pass takes when it adds tensors and nodes to a layer's graph.
#pragma once

#include <string>
#include <vector>

#include "ops/graph.h"

namespace foresail {

/// Adds an activation with the type of `like`; returns its index.
int add_like(Graph& graph, int like, std::string name);

/// Sets the dimensions of a node's outputs from its inputs by the op table's rule; element types stay as they are.
void infer_dims(Graph& graph, const Node& node);

/// Makes new outputs called `names` with the element type of the first input, and appends the node to `nodes` (which need
/// not be the graph's own). Returns the outputs.
std::vector<int> emit(Graph& graph, std::vector<Node>& nodes, OpKind kind, const OpAttributes& attributes,
                      const std::vector<int>& inputs, const std::vector<std::string>& names);

/// Appends a collective whose result, called `name`, is like its operand. Returns the result.
int emit(Graph& graph, std::vector<Node>& nodes, NodeCollective collective, int input, const std::string& name);

}  // namespace foresail
