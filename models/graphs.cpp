// The forward graphs of a decoder-only transformer: what is computed, for every family. Blocks are pre-norm (Xiong et
// al. 2020): x + attention(norm(x)), then y + mlp(norm(y)). Operators stand one by one; program/fuse joins them.
#include <fmt/format.h>

#include "core/error.h"
#include "models/layer_builder.h"

namespace foresail {
namespace {

/// Rows (sequences x positions) and elements of a tensor stay below these, so that no size overflows.
constexpr int64_t kMostRows = int64_t{1} << 31;
constexpr double kMostScores = 0x1p50;

int dense_ffn(LayerBuilder& layer, int x, int residual) {
  const ModelSpec& model = layer.model;
  const WeightNames& names = layer.names;
  const Dim ffn{DimName::ffn, model.ffn};
  int y = -1;
  if (model.activation == ActivationKind::swiglu) {
    y = layer.gated("gate_up", "activated", names.gate, names.up, x, model.ffn, model.mlp_bias);
  } else {
    const int w = layer.matrix("up", names.up, {ffn, layer.hidden()}, layer.normal());
    const int b = model.mlp_bias ? layer.bias("up_bias", names.up, ffn) : -1;
    y = layer.graph.add(OpKind::gelu, {}, {layer.linear("up", x, w, b)}, {"activated"})[0];
  }
  return layer.project("down", names.down, y, ffn, model.mlp_bias, residual, kMlpOutSite);
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

Graph block_graph(const ModelSpec& model, const GraphOptions& options, bool experts) {
  LayerBuilder layer(model, options, experts ? "expert_block" : "block");
  const int x = layer.layer_input();
  const int attended = attend(layer, layer.norm("norm_1", "normed_1", layer.names.norm_1, x));
  const int y = layer.project("attention_out", layer.names.attention_out, attended, attended_width(model),
                              model.attention_out_bias, x, kAttentionOutSite);
  const int normed = layer.norm("norm_2", "normed_2", layer.names.norm_2, y);
  const int output = experts ? expert_ffn(layer, normed, y) : dense_ffn(layer, normed, y);
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

bool is_expert_layer(const ModelSpec& model, int64_t layer) {
  return model.moe.experts > 0 && layer >= model.moe.first_dense_layers;
}

ModelGraphs build_graphs(const ModelSpec& model, const GraphOptions& options) {
  check_options(model, options);
  ModelGraphs graphs;
  graphs.embedding = embedding_graph(model, options);
  graphs.block = block_graph(model, options, false);
  // The last layer has experts if any has.
  if (is_expert_layer(model, model.layers - 1)) graphs.expert_block = block_graph(model, options, true);
  graphs.head = head_graph(model, options);
  return graphs;
}

}  // namespace foresail
