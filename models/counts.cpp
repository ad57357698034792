// Parameters and FLOPs of a model, counted on its graphs: whatever a family adds is counted without a line here.
#include <algorithm>
#include <vector>

#include "models/describe.h"
#include "models/model_spec.h"

namespace foresail {
namespace {

int64_t elements(const Weight& weight) {
  int64_t product = 1;
  for (const Dim& dim : weight.dims) product *= dim.size;
  return product;
}

bool is_matrix_operand(const Graph& graph, int weight) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return node.kind == OpKind::linear && graph.tensors[node.inputs[1]].weight == weight;
  });
}

void append_weights(const Graph& graph, int64_t layers, std::vector<LayerRow>& table) {
  for (size_t w = 0; w < graph.weights.size(); ++w) {
    const Weight& weight = graph.weights[w];
    LayerRow row;
    row.layer = graph.name;
    row.layers = layers;
    row.weight = weight.name;
    for (const Dim& dim : weight.dims) row.shape.push_back(dim.size);
    const bool product = is_matrix_operand(graph, static_cast<int>(w));
    row.matrix_parameters = product ? elements(weight) : 0;
    row.forward_flops_per_token = 2.0 * static_cast<double>(row.matrix_parameters);
    row.parameters = weight.tied_to.empty() ? elements(weight) : 0;
    row.tied_to = weight.tied_to;
    table.push_back(std::move(row));
  }
}

/// Scores and context of one layer, the full square even where attention is causal.
LayerRow attention_row(const ModelSpec& model, int64_t sequence_length) {
  LayerRow row;
  row.layer = "block";
  row.layers = model.layers;
  row.weight = "(attention)";
  row.forward_flops_per_token =
      4.0 * static_cast<double>(model.heads * model.head_dim) * static_cast<double>(sequence_length);
  return row;
}

}  // namespace

std::vector<LayerRow> layer_table(const ModelSpec& model, int64_t sequence_length) {
  GraphOptions options;
  options.sequence_length = sequence_length;
  const ModelGraphs graphs = build_graphs(model, options);
  std::vector<LayerRow> table;
  append_weights(graphs.embedding, 1, table);
  append_weights(graphs.block, model.layers, table);
  table.push_back(attention_row(model, sequence_length));
  append_weights(graphs.head, 1, table);
  return table;
}

int64_t parameter_count(const ModelSpec& model) {
  int64_t sum = 0;
  for (const LayerRow& row : layer_table(model, 1)) sum += row.layers * row.parameters;
  return sum;
}

int64_t matrix_parameters(const ModelSpec& model) {
  int64_t sum = 0;
  for (const LayerRow& row : layer_table(model, 1)) sum += row.layers * row.matrix_parameters;
  return sum;
}

double training_flops_per_token(const ModelSpec& model, int64_t sequence_length) {
  return 6.0 * static_cast<double>(matrix_parameters(model)) +
         12.0 * static_cast<double>(model.layers * model.heads * model.head_dim) * static_cast<double>(sequence_length);
}

}  // namespace foresail
