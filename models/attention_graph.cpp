// The attention half of a block: projections, rotary positions and the attention itself, for every family.
#include <cmath>

#include "models/layer_builder.h"

namespace foresail {
namespace {

/// The published models norm their latents with this, whatever rms_norm_eps says.
constexpr double kLatentNormEpsilon = 1e-6;

/// By how much attention grows sharper where the context is `factor` times that of training (Peng et al. 2023, equation
/// 22), `weight` being DeepSeek's mscale.
double yarn_magnitude(double factor, double weight) { return factor <= 1 ? 1 : 0.1 * weight * std::log(factor) + 1; }

/// What cosines and sines are multiplied by (`_compute_yarn_parameters` in transformers).
double rope_magnitude(const ModelSpec& model) {
  if (model.rope_scaling != RopeScaling::yarn) return 1;
  if (model.rope_attention_factor > 0) return model.rope_attention_factor;
  if (model.rope_mscale == 0) return yarn_magnitude(model.rope_factor, 1);
  return yarn_magnitude(model.rope_factor, model.rope_mscale) /
         yarn_magnitude(model.rope_factor, model.rope_mscale_all_dim);
}

/// 1 / sqrt(head_dim). DeepSeek applies the magnitude of mscale_all_dim to all columns of a head, so to the scores
/// squared.
double score_scale(const ModelSpec& model) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(model.head_dim));
  if (model.latent.kv_rank == 0 || model.rope_scaling != RopeScaling::yarn || model.rope_mscale_all_dim == 0) {
    return scale;
  }
  const double magnitude = yarn_magnitude(model.rope_factor, model.rope_mscale_all_dim);
  return scale * magnitude * magnitude;
}

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
  void set_rotation(OpAttributes& attributes) const;
  int rope_table(int64_t rotated);
  int rotate(int qkv);
  int latent(const std::string& name, const std::string& module, int64_t module_rows, const std::string& norm_module,
             int x, int64_t rank);
  int latent_queries(int x);
  int latent_qkv(int x);
  OpAttributes head_attributes() const;
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

/// Of the table and of what reads it.
void AttentionBuilder::set_rotation(OpAttributes& attributes) const {
  attributes.rope_theta = model.rope_theta;
  attributes.rope_scaling = model.rope_scaling;
  attributes.rope_factor = model.rope_factor;
  attributes.rope_low_frequency = model.rope_low_frequency;
  attributes.rope_high_frequency = model.rope_high_frequency;
  attributes.rope_original_positions = model.rope_original_positions;
  attributes.rope_beta_fast = model.rope_beta_fast;
  attributes.rope_beta_slow = model.rope_beta_slow;
  attributes.rope_magnitude = rope_magnitude(model);
}

int AttentionBuilder::rope_table(int64_t rotated) {
  return graph.input("rope_table", TensorRole::constant, DType::f32,
                     {{DimName::position, options.sequence_length}, fixed(rotated / 2), fixed(2)});
}

int AttentionBuilder::rotate(int qkv) {
  if (model.positions != PositionKind::rope) return qkv;
  OpAttributes attributes = layer.head_attributes();
  set_rotation(attributes);
  return graph.add(OpKind::rope, attributes, {qkv, rope_table(model.head_dim)}, {"qkv.rotated"})[0];
}

/// Down to a latent of `rank` columns and its norm. The latent is whole on every rank: nothing of it is cut. `module` may
/// hold more rows than the latent.
int AttentionBuilder::latent(const std::string& name, const std::string& module, int64_t module_rows,
                             const std::string& norm_module, int x, int64_t rank) {
  const std::vector<WeightPart> part{{module + ".weight", rank, module_rows, 0, false}};
  const int w = graph.weight({name, {fixed(rank), layer.hidden()}, part, layer.normal(), true, ""});
  const int scale = layer.vector(name + "_norm", norm_module + ".weight", fixed(rank), InitKind::ones);
  OpAttributes attributes;
  attributes.epsilon = kLatentNormEpsilon;
  const int y = layer.linear(name, x, w);
  return graph.add(OpKind::rms_norm, attributes, {y, scale}, {name + ".normed", name + ".rstd"})[0];
}

/// Queries [T, A(N+R)], with a latent of their own or without.
int AttentionBuilder::latent_queries(int x) {
  const LatentAttentionSpec& spec = model.latent;
  const Dim rows{DimName::attention, q_rows()};
  if (spec.query_rank == 0) {
    return layer.linear("q", x, layer.matrix("q", names.query, {rows, layer.hidden()}, layer.normal()));
  }
  const int y =
      latent("q_latent", names.latent.query_down, spec.query_rank, names.latent.query_norm, x, spec.query_rank);
  return layer.linear("q", y, layer.matrix("q", names.latent.query_up, {rows, fixed(spec.query_rank)}, layer.normal()));
}

/// Multi-head latent attention (DeepSeek-V2, section 2.1.2) up to packed rows. The tensor that makes the latent of keys
/// and values holds the rotated key's rows too; they are a weight of their own here, for only the latent is normed.
int AttentionBuilder::latent_qkv(int x) {
  const LatentAttentionSpec& spec = model.latent;
  const std::string& down = names.latent.kv_down;
  const int64_t down_rows = spec.kv_rank + spec.rope_dim;
  const int q = latent_queries(x);
  const int kv_latent = latent("kv_latent", down, down_rows, names.latent.kv_norm, x, spec.kv_rank);
  const Dim kv_up{DimName::kv, model.heads * (spec.nope_dim + spec.value_dim)};
  const int up = layer.matrix("kv", names.latent.kv_up, {kv_up, fixed(spec.kv_rank)}, layer.normal());
  const int kv_rows = layer.linear("kv", kv_latent, up);
  const std::vector<WeightPart> part{{down + ".weight", spec.rope_dim, down_rows, spec.kv_rank, false}};
  const int w = graph.weight({"k_rope", {fixed(spec.rope_dim), layer.hidden()}, part, layer.normal(), true, ""});
  const int k_rope = layer.linear("k_rope", x, w);
  OpAttributes attributes = head_attributes();
  attributes.rope_dim = spec.rope_dim;
  set_rotation(attributes);
  return graph.add(OpKind::latent_join, attributes, {q, kv_rows, k_rope, rope_table(spec.rope_dim)}, {"qkv"})[0];
}

OpAttributes AttentionBuilder::head_attributes() const {
  OpAttributes attributes = layer.head_attributes();
  attributes.value_dim = model.latent.value_dim;
  return attributes;
}

int AttentionBuilder::attend(int qkv) {
  OpAttributes attributes = head_attributes();
  attributes.scale = score_scale(model);
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

Dim attended_width(const ModelSpec& model) {
  const int64_t value_width = model.latent.kv_rank > 0 ? model.latent.value_dim : model.head_dim;
  return {DimName::attention, model.heads * value_width};
}

int attend(LayerBuilder& layer, int normed) {
  AttentionBuilder attention(layer);
  if (layer.model.latent.kv_rank > 0) return attention.attend(attention.latent_qkv(normed));
  return attention.attend(attention.rotate(attention.project_qkv(normed)));
}

}  // namespace foresail
