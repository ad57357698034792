// The forward graphs of a decoder-only transformer: what is computed, for every family. Blocks are pre-norm (Xiong et
// al. 2020): x + attention(norm(x)), then y + mlp(norm(y)). Operators stand one by one; program/fuse joins them.
#include <cmath>

#include <fmt/format.h>

#include "core/error.h"
#include "models/model_spec.h"
#include "models/weight_names.h"

namespace foresail {
namespace {

/// One per dropout of a layer; the random stream of a dropout is layer * 16 + site.
enum RandomSite : int32_t { kAttentionSite = 0, kAttentionOutSite = 1, kMlpOutSite = 2, kEmbeddingSite = 3 };

/// Rows (sequences x positions) and elements of a tensor stay below these, so that no size overflows.
constexpr int64_t kMostRows = int64_t{1} << 31;
constexpr double kMostScores = 0x1p50;

Dim fixed(int64_t size) { return {DimName::fixed, size}; }

/// Builds one layer of `model`.
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
  Dim ffn() const { return {DimName::ffn, model.ffn}; }
  Dim attention() const { return {DimName::attention, model.heads * model.head_dim}; }
  Dim vocabulary() const { return {DimName::vocabulary, model.vocabulary}; }
  int64_t q_rows() const { return model.heads * model.head_dim; }
  int64_t kv_rows() const { return model.kv_heads * model.head_dim; }
  Dim qkv() const { return {DimName::qkv, q_rows() + 2 * kv_rows()}; }
  Dim kv() const { return {DimName::kv, 2 * kv_rows()}; }

  Init normal(bool residual_projection = false) const {
    // GPT-2 scales what is added to the residual stream by 1 / sqrt(number of additions) (Radford et al. 2019, 2.3).
    const double additions = model.scale_residual_init && residual_projection ? 2.0 * model.layers : 1.0;
    return {InitKind::normal, model.init_standard_deviation / std::sqrt(additions)};
  }

  int layer_input() {
    return graph.input("x", TensorRole::layer_input, options.precision.activation, {tokens(), hidden()});
  }

  /// A weight that is one logical tensor.
  int weight(const std::string& name, const std::string& tensor, std::vector<Dim> dims, const Init& init, bool decay,
             bool transposed = false) {
    const int64_t rows = dims.at(0).size;
    return graph.weight({name, std::move(dims), {{tensor, rows, rows, 0, transposed}}, init, decay, ""});
  }
  int matrix(const std::string& name, const std::string& module, std::vector<Dim> dims, const Init& init) {
    return weight(name, module + ".weight", std::move(dims), init, true, names.transposed_in_file);
  }
  int vector(const std::string& name, const std::string& tensor, const Dim& dim, InitKind kind) {
    return weight(name, tensor, {dim}, {kind, 0}, false);
  }
  int bias(const std::string& name, const std::string& module, const Dim& dim) {
    return vector(name, module + ".bias", dim, InitKind::zeros);
  }

  /// `suffix` is ".weight" or ".bias" of the three projections, packed in the order q, k, v; those from `begin` to before
  /// `end`.
  std::vector<WeightPart> qkv_parts(const std::string& suffix, bool transposed, int begin, int end) const {
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

  int norm(const std::string& weight_name, const std::string& output, const std::string& module, int x) {
    OpAttributes attributes;
    attributes.epsilon = model.norm_epsilon;
    const int scale = vector(weight_name, module + ".weight", hidden(), InitKind::ones);
    if (model.norm == NormKind::rms_norm) {
      return graph.add(OpKind::rms_norm, attributes, {x, scale}, {output, output + ".rstd"})[0];
    }
    const int shift = bias(weight_name + "_bias", module, hidden());
    return graph.add(OpKind::layer_norm, attributes, {x, scale, shift},
                     {output, output + ".mean", output + ".rstd"})[0];
  }

  int dropout(const std::string& output, int x, double probability, RandomSite site) {
    if (probability <= 0) return x;
    OpAttributes attributes = row_attributes();
    attributes.probability = probability;
    attributes.random_site = site;
    return graph.add(OpKind::dropout, attributes, {x}, {output})[0];
  }

  int linear(const std::string& output, int x, int matrix, int bias = -1) {
    std::vector<int> inputs{x, matrix};
    if (bias >= 0) inputs.push_back(bias);
    return graph.add(OpKind::linear, {}, inputs, {output})[0];
  }

  int add(const std::string& output, int a, int b) { return graph.add(OpKind::add, {}, {a, b}, {output})[0]; }

  /// The end of a half block: product into the residual stream, bias after it (tensor parallelism sums the products
  /// first), dropout, residual. The matrix is [hidden, inner].
  int project(const std::string& name, const std::string& module, int x, const Dim& inner, bool has_bias, int residual,
              RandomSite site) {
    int y = linear(name, x, matrix(name, module, {hidden(), inner}, normal(true)));
    if (has_bias) {
      y = graph.add(OpKind::bias_add, {}, {y, bias(name + "_bias", module, hidden())}, {name + ".biased"})[0];
    }
    y = dropout(name + ".dropped", y, model.residual_dropout, site);
    return add(name + ".sum", y, residual);
  }

  /// Of operators that must know which positions their rows are.
  OpAttributes row_attributes() const {
    OpAttributes attributes;
    attributes.sequence_length = local_length();
    attributes.context_parallel = options.context_parallel;
    return attributes;
  }
  OpAttributes head_attributes() const {
    OpAttributes attributes = row_attributes();
    attributes.heads = model.heads;
    attributes.kv_heads = model.kv_heads;
    attributes.head_dim = model.head_dim;
    return attributes;
  }

  int project_heads(const std::string& name, int x, const Dim& rows, int begin, int end);
  int project_qkv(int x);
  int rotate(int qkv);
  int attend(int qkv);
  int attend_unfused(int qkv, OpAttributes attributes);
  int mlp(int x, int residual);
};

/// One product that serves the projections from `begin` to before `end` of q, k, v.
int LayerBuilder::project_heads(const std::string& name, int x, const Dim& rows, int begin, int end) {
  const auto parts = qkv_parts(".weight", names.transposed_in_file, begin, end);
  const int w = graph.weight({name, {rows, hidden()}, parts, normal(), true, ""});
  int b = -1;
  if (model.qkv_bias) {
    const auto bias_parts = qkv_parts(".bias", false, begin, end);
    b = graph.weight({name + "_bias", {rows}, bias_parts, {InitKind::zeros, 0}, false, ""});
  }
  return linear(name, x, w, b);
}

/// q, k and v of all heads, normed per head where the model does that. One product, unless ranks that hold the same
/// keys and values differ in their queries: the gradients of k and v are then summed over them, that of q is not.
int LayerBuilder::project_qkv(int x) {
  int y = -1;
  if (options.kv_copies > 1) {
    const int q = project_heads("q", x, attention(), 0, 1);
    const int kv_heads = project_heads("kv", x, kv(), 1, 3);
    y = graph.add(OpKind::join_qkv, head_attributes(), {q, kv_heads}, {"qkv"})[0];
  } else {
    y = project_heads("qkv", x, qkv(), 0, 3);
  }
  if (!model.qk_norm) return y;
  OpAttributes attributes = head_attributes();
  attributes.epsilon = model.norm_epsilon;
  const int q = vector("query_norm", names.query_norm + ".weight", fixed(model.head_dim), InitKind::ones);
  const int k = vector("key_norm", names.key_norm + ".weight", fixed(model.head_dim), InitKind::ones);
  return graph.add(OpKind::qk_norm, attributes, {y, q, k}, {"qkv.normed", "qkv.rstd"})[0];
}

int LayerBuilder::rotate(int qkv) {
  if (model.positions != PositionKind::rope) return qkv;
  OpAttributes attributes = head_attributes();
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

int LayerBuilder::attend(int qkv) {
  OpAttributes attributes = head_attributes();
  attributes.scale = 1.0 / std::sqrt(static_cast<double>(model.head_dim));
  // A window that spans the sequence is none.
  attributes.window = model.sliding_window < options.sequence_length ? model.sliding_window : 0;
  if (options.unfused_attention) return attend_unfused(qkv, attributes);
  attributes.probability = model.attention_dropout;
  attributes.random_site = kAttentionSite;
  return graph.add(OpKind::attention, attributes, {qkv}, {"attended", "attended.lse"})[0];
}

int LayerBuilder::attend_unfused(int qkv, OpAttributes attributes) {
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

int LayerBuilder::mlp(int x, int residual) {
  int y = -1;
  if (model.activation == ActivationKind::swiglu) {
    const Dim gate_up{DimName::gate_up, 2 * model.ffn};
    const auto parts = [&](const std::string& suffix) {
      return std::vector<WeightPart>{{names.gate + suffix, model.ffn, model.ffn, 0, names.transposed_in_file},
                                     {names.up + suffix, model.ffn, model.ffn, 0, names.transposed_in_file}};
    };
    const int w = graph.weight({"gate_up", {gate_up, hidden()}, parts(".weight"), normal(), true, ""});
    int b = -1;
    if (model.mlp_bias) b = graph.weight({"gate_up_bias", {gate_up}, parts(".bias"), {InitKind::zeros, 0}, false, ""});
    y = graph.add(OpKind::swiglu, {}, {linear("gate_up", x, w, b)}, {"activated"})[0];
  } else {
    const int w = matrix("up", names.up, {ffn(), hidden()}, normal());
    const int b = model.mlp_bias ? bias("up_bias", names.up, ffn()) : -1;
    y = graph.add(OpKind::gelu, {}, {linear("up", x, w, b)}, {"activated"})[0];
  }
  return project("down", names.down, y, ffn(), model.mlp_bias, residual, kMlpOutSite);
}

Graph embedding_graph(const ModelSpec& model, const GraphOptions& options) {
  LayerBuilder layer(model, options, "embedding");
  const int ids = layer.graph.input("tokens", TensorRole::tokens, DType::i32, {layer.tokens()});
  const int table = layer.weight("token_embedding", layer.names.token_embedding + ".weight",
                                 {layer.vocabulary(), layer.hidden()}, layer.normal(), true);
  OpAttributes attributes;
  attributes.vocabulary = model.vocabulary;
  int x = layer.graph.add(OpKind::embedding, attributes, {ids, table}, {"embedded"})[0];
  if (model.positions == PositionKind::learned) {
    const int positions =
        layer.weight("position_embedding", layer.names.position_embedding + ".weight",
                     {{DimName::position, model.max_positions}, layer.hidden()}, layer.normal(), true);
    x = layer.graph.add(OpKind::position_embedding, layer.row_attributes(), {x, positions}, {"placed"})[0];
  }
  x = layer.dropout("embedded.dropped", x, model.embedding_dropout, kEmbeddingSite);
  layer.graph.set_role(x, TensorRole::layer_output);
  return layer.graph.finish();
}

Graph block_graph(const ModelSpec& model, const GraphOptions& options) {
  LayerBuilder layer(model, options, "block");
  const int x = layer.layer_input();
  const int normed = layer.norm("norm_1", "normed_1", layer.names.norm_1, x);
  const int attended = layer.attend(layer.rotate(layer.project_qkv(normed)));
  const int y = layer.project("attention_out", layer.names.attention_out, attended, layer.attention(),
                              model.attention_out_bias, x, kAttentionOutSite);
  const int output = layer.mlp(layer.norm("norm_2", "normed_2", layer.names.norm_2, y), y);
  layer.graph.set_role(output, TensorRole::layer_output);
  return layer.graph.finish();
}

Graph head_graph(const ModelSpec& model, const GraphOptions& options) {
  LayerBuilder layer(model, options, "head");
  const int x = layer.layer_input();
  const int targets = layer.graph.input("targets", TensorRole::targets, DType::i32, {layer.tokens()});
  const int normed = layer.norm("final_norm", "normed", layer.names.final_norm, x);
  const std::string tensor = (model.tied_embeddings ? layer.names.token_embedding : layer.names.head) + ".weight";
  const int table = layer.graph.weight({"head",
                                        {layer.vocabulary(), layer.hidden()},
                                        {{tensor, model.vocabulary, model.vocabulary, 0, false}},
                                        layer.normal(),
                                        true,
                                        model.tied_embeddings ? "token_embedding" : ""});
  const int logits = layer.linear("logits", normed, table);
  OpAttributes attributes;
  attributes.vocabulary = model.vocabulary;
  const int stats = layer.graph.add(OpKind::cross_entropy_stats, attributes, {logits, targets}, {"stats"})[0];
  const int loss = layer.graph.add(OpKind::cross_entropy_loss, attributes, {logits, targets, stats}, {"loss"})[0];
  layer.graph.set_role(loss, TensorRole::loss);
  return layer.graph.finish();
}

void check_options(const ModelSpec& model, const GraphOptions& options) {
  const int64_t length = options.sequence_length;
  if (length < 1 || options.micro_batch < 1 || length > kMostRows || options.micro_batch > kMostRows / length) {
    throw_bad_input("model " + model.name,
                    fmt::format("a micro-batch of {} x {} tokens is impossible", options.micro_batch, length),
                    fmt::format("give positive sizes whose product is at most {}", kMostRows));
  }
  const int64_t context = options.context_parallel;
  if (context < 1 || (context > 1 && length % (2 * context) != 0)) {
    throw_bad_input("model " + model.name,
                    fmt::format("a sequence of {} tokens cannot be cut into {} equal chunks, two for each of {} ranks",
                                length, 2 * context, context),
                    fmt::format("use a sequence length that is a multiple of {}", 2 * context));
  }
  if (model.positions == PositionKind::learned && length > model.max_positions) {
    throw_bad_input(
        "model " + model.name,
        fmt::format("a sequence of {} tokens is longer than its {} learned positions", length, model.max_positions),
        fmt::format("use a sequence length of at most {}", model.max_positions));
  }
  const double scores = static_cast<double>(options.micro_batch) * model.heads * length * static_cast<double>(length);
  if (options.unfused_attention && scores > kMostScores) {
    throw_bad_input("model " + model.name, fmt::format("unfused attention would store {:.3g} scores", scores),
                    "use fused attention or a shorter sequence");
  }
}

}  // namespace

ModelGraphs build_graphs(const ModelSpec& model, const GraphOptions& options) {
  check_options(model, options);
  return {embedding_graph(model, options), block_graph(model, options), head_graph(model, options)};
}

}  // namespace foresail
