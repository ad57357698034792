// Parameters and FLOPs of a model, counted on its graphs: whatever a family adds is counted without a line here.
#include <algorithm>
#include <vector>

#include "models/describe.h"
#include "models/model_spec.h"
#include "ops/op_table.h"

namespace foresail {
namespace {

int64_t elements(const Weight& weight) {
  int64_t product = 1;
  for (const Dim& dim : weight.dims) product *= dim.size;
  return product;
}

bool is_matrix_operand(const Graph& graph, int weight) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return info(node.kind).op_class == OpClass::matrix_product && graph.tensors[node.inputs[1]].weight == weight;
  });
}

/// Of a weight that has a matrix per expert [E, out, in], those of a token's own experts.
int64_t active_elements(const ModelSpec& model, const Weight& weight) {
  const bool per_expert = weight.dims.size() == 3;
  return per_expert ? elements(weight) / model.moe.experts * model.moe.experts_per_token : elements(weight);
}

void append_weights(const ModelSpec& model, const Graph& graph, int64_t layers, std::vector<LayerRow>& table) {
  for (size_t w = 0; w < graph.weights.size(); ++w) {
    const Weight& weight = graph.weights[w];
    LayerRow row;
    row.layer = graph.name;
    row.layers = layers;
    row.weight = weight.name;
    for (const Dim& dim : weight.dims) row.shape.push_back(dim.size);
    const int64_t active = active_elements(model, weight);
    row.matrix_parameters = is_matrix_operand(graph, static_cast<int>(w)) ? active : 0;
    row.forward_flops_per_token = 2.0 * static_cast<double>(row.matrix_parameters);
    row.parameters = weight.tied_to.empty() ? elements(weight) : 0;
    row.active_parameters = weight.tied_to.empty() ? active : 0;
    row.tied_to = weight.tied_to;
    table.push_back(std::move(row));
  }
}

/// Width of a head's query and key plus that of its value.
int64_t score_and_value_width(const ModelSpec& model) {
  return model.head_dim + (model.latent.kv_rank > 0 ? model.latent.value_dim : model.head_dim);
}

/// Scores and context of one layer, the full square even where attention is causal.
LayerRow attention_row(const ModelSpec& model, const std::string& layer, int64_t layers, int64_t sequence_length) {
  LayerRow row;
  row.layer = layer;
  row.layers = layers;
  row.weight = "(attention)";
  row.forward_flops_per_token =
      2.0 * static_cast<double>(model.heads * score_and_value_width(model)) * static_cast<double>(sequence_length);
  return row;
}

template <typename Member>
int64_t sum_over_layers(const ModelSpec& model, Member member) {
  int64_t sum = 0;
  for (const LayerRow& row : layer_table(model, 1)) sum += row.layers * row.*member;
  return sum;
}

}  // namespace

std::vector<LayerRow> layer_table(const ModelSpec& model, int64_t sequence_length) {
  GraphOptions options;
  options.sequence_length = sequence_length;
  const ModelGraphs graphs = build_graphs(model, options);
  const int64_t dense = model.moe.experts > 0 ? model.moe.first_dense_layers : model.layers;
  std::vector<LayerRow> table;
  append_weights(model, graphs.embedding, 1, table);
  for (const auto& [block, layers] : {std::pair{&graphs.block, dense}, {&graphs.expert_block, model.layers - dense}}) {
    if (layers == 0) continue;
    append_weights(model, *block, layers, table);
    table.push_back(attention_row(model, block->name, layers, sequence_length));
  }
  append_weights(model, graphs.head, 1, table);
  return table;
}

int64_t parameter_count(const ModelSpec& model) { return sum_over_layers(model, &LayerRow::parameters); }

int64_t active_parameter_count(const ModelSpec& model) { return sum_over_layers(model, &LayerRow::active_parameters); }

int64_t matrix_parameters(const ModelSpec& model) { return sum_over_layers(model, &LayerRow::matrix_parameters); }

double training_flops_per_token(const ModelSpec& model, int64_t sequence_length) {
  return 6.0 * static_cast<double>(matrix_parameters(model)) +
         6.0 * static_cast<double>(model.layers * model.heads * score_and_value_width(model)) *
             static_cast<double>(sequence_length);
}

}  // namespace foresail
