// The attention half of a block: projections, rotary positions and the attention itself, for every family.
#include <cmath>

#include "core/error.h"
#include "models/layer_builder.h"

namespace foresail {
namespace {

struct AttentionBuilder {
  LayerBuilder& layer;
  const ModelSpec& model;
  const GraphOptions& options;
  const WeightNames& names;
  GraphBuilder& graph;

  explicit AttentionBuilder(LayerBuilder& layer)
      : layer(layer), model(layer.model), options(layer.options), names(layer.names), graph(layer.graph) {}

  int64_t q_rows() const { return model.heads * model.head_dim; }
  int64_t kv_rows() const { return model.kv_heads * model.head_dim; }
  Dim qkv() const { return {DimName::qkv, q_rows() + 2 * kv_rows()}; }
  Dim kv() const { return {DimName::kv, 2 * kv_rows()}; }

  std::vector<WeightPart> qkv_parts(const std::string& suffix, bool transposed, int begin, int end) const;
  int project_heads(const std::string& name, int x, const Dim& rows, int begin, int end);
  int project_qkv(int x);
  int rotate(int qkv);
  int attend(int qkv);
  int attend_unfused(int qkv, OpAttributes attributes);
};

/// `suffix` is ".weight" or ".bias" of the three projections, packed in the order q, k, v; those from `begin` to before
/// `end`.
std::vector<WeightPart> AttentionBuilder::qkv_parts(const std::string& suffix, bool transposed, int begin,
                                                    int end) const {
  const bool joint = names.query == names.key;
  const int64_t rows[3] = {q_rows(), kv_rows(), kv_rows()};
  const std::string* modules[3] = {&names.query, &names.key, &names.value};
  std::vector<WeightPart> parts;
  int64_t first = 0;
  for (int i = 0; i < end; ++i) {
    if (i >= begin) {
      parts.push_back({*modules[i] + suffix, rows[i], joint ? qkv().size : rows[i], joint ? first : 0, transposed});
    }
    first += rows[i];
  }
  return parts;
}

/// One product that serves the projections from `begin` to before `end` of q, k, v.
int AttentionBuilder::project_heads(const std::string& name, int x, const Dim& rows, int begin, int end) {
  const auto parts = qkv_parts(".weight", names.transposed_in_file, begin, end);
  const int w = graph.weight({name, {rows, layer.hidden()}, parts, layer.normal(), true, ""});
  int b = -1;
  if (model.qkv_bias) {
    const auto bias_parts = qkv_parts(".bias", false, begin, end);
    b = graph.weight({name + "_bias", {rows}, bias_parts, {InitKind::zeros, 0}, false, ""});
  }
  return layer.linear(name, x, w, b);
}

/// q, k and v of all heads, normed per head where the model does that. One product, unless ranks that hold the same
/// keys and values differ in their queries: the gradients of k and v are then summed over them, that of q is not.
int AttentionBuilder::project_qkv(int x) {
  int y = -1;
  if (options.kv_copies > 1) {
    const int q = project_heads("q", x, {DimName::attention, q_rows()}, 0, 1);
    const int kv_heads = project_heads("kv", x, kv(), 1, 3);
    y = graph.add(OpKind::join_qkv, layer.head_attributes(), {q, kv_heads}, {"qkv"})[0];
  } else {
    y = project_heads("qkv", x, qkv(), 0, 3);
  }
  if (!model.qk_norm) return y;
  OpAttributes attributes = layer.head_attributes();
  attributes.epsilon = model.norm_epsilon;
  const int q = layer.vector("query_norm", names.query_norm + ".weight", fixed(model.head_dim), InitKind::ones);
  const int k = layer.vector("key_norm", names.key_norm + ".weight", fixed(model.head_dim), InitKind::ones);
  return graph.add(OpKind::qk_norm, attributes, {y, q, k}, {"qkv.normed", "qkv.rstd"})[0];
}

int AttentionBuilder::rotate(int qkv) {
  if (model.positions != PositionKind::rope) return qkv;
  OpAttributes attributes = layer.head_attributes();
  attributes.rope_theta = model.rope_theta;
  attributes.rope_scaling = model.rope_scaling;
  attributes.rope_factor = model.rope_factor;
  attributes.rope_low_frequency = model.rope_low_frequency;
  attributes.rope_high_frequency = model.rope_high_frequency;
  attributes.rope_original_positions = model.rope_original_positions;
  const int table = graph.input("rope_table", TensorRole::constant, DType::f32,
                                {{DimName::position, options.sequence_length}, fixed(model.head_dim / 2), fixed(2)});
  return graph.add(OpKind::rope, attributes, {qkv, table}, {"qkv.rotated"})[0];
}

int AttentionBuilder::attend(int qkv) {
  OpAttributes attributes = layer.head_attributes();
  attributes.scale = 1.0 / std::sqrt(static_cast<double>(model.head_dim));
  // A window that spans the sequence is none.
  attributes.window = model.sliding_window < options.sequence_length ? model.sliding_window : 0;
  if (options.unfused_attention) return attend_unfused(qkv, attributes);
  attributes.probability = model.attention_dropout;
  attributes.random_site = kAttentionSite;
  return graph.add(OpKind::attention, attributes, {qkv}, {"attended", "attended.lse"})[0];
}

int AttentionBuilder::attend_unfused(int qkv, OpAttributes attributes) {
  const int scores = graph.add(OpKind::attention_scores, attributes, {qkv}, {"scores"})[0];
  int p = graph.add(OpKind::attention_softmax, attributes, {scores}, {"probabilities"})[0];
  if (model.attention_dropout > 0) {
    OpAttributes drop = attributes;  // the mask is keyed by (sequence, head, query, key), so dropout sees the heads too
    drop.probability = model.attention_dropout;
    drop.random_site = kAttentionSite;
    p = graph.add(OpKind::dropout, drop, {p}, {"probabilities.dropped"})[0];
  }
  return graph.add(OpKind::attention_context, attributes, {p, qkv}, {"attended"})[0];
}

}  // namespace

Dim attended_width(const ModelSpec& model) { return {DimName::attention, model.heads * model.head_dim}; }

int attend(LayerBuilder& layer, int normed) {
  AttentionBuilder attention(layer);
  if (layer.model.latent.kv_rank > 0) {
    throw_bad_input("model " + layer.model.name, "its latent attention cannot be built yet",
                    "use a model with another attention");
  }
  return attention.attend(attention.rotate(attention.project_qkv(normed)));
}

}  // namespace foresail
