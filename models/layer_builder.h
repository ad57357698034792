// Builds the forward graph of one kind of layer: the pieces that embedding, blocks and head are made of. Private to this
// room.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/model_spec.h"
#include "models/weight_names.h"
#include "ops/graph.h"

namespace foresail {

/// One per dropout of a layer; the random stream of a dropout is layer * 16 + site.
enum RandomSite : int32_t { kAttentionSite = 0, kAttentionOutSite = 1, kMlpOutSite = 2, kEmbeddingSite = 3 };

inline Dim fixed(int64_t size) { return {DimName::fixed, size}; }

struct LayerBuilder {
  const ModelSpec& model;
  const GraphOptions& options;
  const WeightNames& names;
  GraphBuilder graph;

  LayerBuilder(const ModelSpec& model, const GraphOptions& options, const std::string& name)
      : model(model), options(options), names(weight_names(model)), graph(name, options.precision) {}

  int64_t local_length() const { return options.sequence_length / options.context_parallel; }
  Dim tokens() const { return {DimName::tokens, options.micro_batch * local_length()}; }
  Dim hidden() const { return {DimName::hidden, model.hidden}; }
  Dim vocabulary() const { return {DimName::vocabulary, model.vocabulary}; }

  Init normal(bool residual_projection = false) const;
  int layer_input() {
    return graph.input("x", TensorRole::layer_input, options.precision.activation, {tokens(), hidden()});
  }

  /// A weight that is one logical tensor.
  int weight(const std::string& name, const std::string& tensor, std::vector<Dim> dims, const Init& init, bool decay,
             bool transposed = false);
  int matrix(const std::string& name, const std::string& module, std::vector<Dim> dims, const Init& init) {
    return weight(name, module + ".weight", std::move(dims), init, true, names.transposed_in_file);
  }
  int vector(const std::string& name, const std::string& tensor, const Dim& dim, InitKind kind) {
    return weight(name, tensor, {dim}, {kind, 0}, false);
  }
  int bias(const std::string& name, const std::string& module, const Dim& dim) {
    return vector(name, module + ".bias", dim, InitKind::zeros);
  }

  /// The model's norm over rows of `x`, scaled by the weight of `module`.
  int norm(const std::string& weight_name, const std::string& output, const std::string& module, int x);
  int dropout(const std::string& output, int x, double probability, RandomSite site);
  int linear(const std::string& output, int x, int matrix, int bias = -1);
  int add(const std::string& output, int a, int b) { return graph.add(OpKind::add, {}, {a, b}, {output})[0]; }

  /// The end of a half block: product into the residual stream, bias after it (tensor parallelism sums the products
  /// first), dropout, residual. The matrix is [hidden, inner].
  int project(const std::string& name, const std::string& module, int x, const Dim& inner, bool has_bias, int residual,
              RandomSite site);
  /// silu(x gate) * (x up), [T, width]: one product with a packed weight `name` of two parts, and `output`.
  int gated(const std::string& name, const std::string& output, const std::string& gate, const std::string& up, int x,
            int64_t width, bool has_bias);

  /// Of operators that must know which positions their rows are.
  OpAttributes row_attributes() const;
  OpAttributes head_attributes() const;
};

/// Attention of a block from its normed input [T, hidden] to the rows [T, heads * value width] that the output
/// projection reads, and how wide they are (attention_graph.cpp).
int attend(LayerBuilder& layer, int normed);
Dim attended_width(const ModelSpec& model);

/// The mixture of experts of a block from its normed input to `residual` + experts(normed) [+ shared experts], the
/// block's output (expert_graph.cpp).
int expert_ffn(LayerBuilder& layer, int normed, int residual);

}  // namespace foresail
