#include "models/describe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace foresail {
namespace {

/// 124439808 -> "124,439,808".
std::string with_commas(int64_t number) {
  std::string text = std::to_string(number);
  for (int64_t i = static_cast<int64_t>(text.size()) - 3; i > 0; i -= 3) text.insert(static_cast<size_t>(i), ",");
  return text;
}

std::string positions_text(const ModelSpec& model) {
  if (model.positions == PositionKind::learned) return fmt::format("{} learned positions", model.max_positions);
  std::string text = fmt::format("rotary positions (theta {:g}) up to {}", model.rope_theta, model.max_positions);
  if (model.rope_scaling == RopeScaling::linear) text += fmt::format(", linear scaling by {:g}", model.rope_factor);
  if (model.rope_scaling == RopeScaling::llama3) text += fmt::format(", llama3 scaling by {:g}", model.rope_factor);
  if (model.rope_scaling == RopeScaling::yarn) text += fmt::format(", YaRN scaling by {:g}", model.rope_factor);
  return text;
}

std::string heads_text(const ModelSpec& model) {
  const LatentAttentionSpec& latent = model.latent;
  if (latent.kv_rank == 0) {
    return fmt::format("{} heads ({} key-value) of {}", model.heads, model.kv_heads, model.head_dim);
  }
  return fmt::format("{} heads of {} ({} rotated), values of {}", model.heads, model.head_dim, latent.rope_dim,
                     latent.value_dim);
}

std::string latent_text(const LatentAttentionSpec& latent) {
  if (latent.kv_rank == 0) return "";
  const std::string queries = latent.query_rank > 0 ? fmt::format(", queries of {}", latent.query_rank) : "";
  return fmt::format("  latent attention: keys and values from a latent of {}{}\n", latent.kv_rank, queries);
}

std::string experts_text(const ModelSpec& model) {
  const ExpertSpec& moe = model.moe;
  if (moe.experts == 0) return "";
  std::string text =
      fmt::format("  {} experts of width {}, {} per token", moe.experts, moe.expert_ffn, moe.experts_per_token);
  if (moe.groups > 1) text += fmt::format(" from {} of {} groups", moe.groups_per_token, moe.groups);
  if (moe.shared_ffn > 0) text += fmt::format(", shared experts of width {}", moe.shared_ffn);
  if (moe.first_dense_layers > 0) text += fmt::format("; first {} layers dense", moe.first_dense_layers);
  return text + fmt::format("; {} active parameters\n", with_commas(active_parameter_count(model)));
}

std::string row_text(const LayerRow& row) {
  const std::string shape = fmt::format("{}", fmt::join(row.shape, " x "));
  const std::string parameters = !row.tied_to.empty() ? "tied"
                                 : row.parameters > 0 ? with_commas(row.parameters)
                                                      : std::string("-");
  const std::string flops = row.forward_flops_per_token > 0
                                ? with_commas(static_cast<int64_t>(row.forward_flops_per_token))
                                : std::string("-");
  return fmt::format("  {:<12} {:>6} {:<19} {:>17} {:>16} {:>20}\n", row.layer, row.layers, row.weight, shape,
                     parameters, flops);
}

}  // namespace

std::string describe_model(const ModelSpec& model, int64_t sequence_length) {
  std::string text =
      fmt::format("{} ({}): {} parameters\n", model.name, model.family, with_commas(parameter_count(model)));
  text += fmt::format("  {} layers, hidden {}, {}, FFN {}, vocabulary {}\n", model.layers, model.hidden,
                      heads_text(model), model.ffn, model.vocabulary);
  text += latent_text(model.latent) + experts_text(model);
  text += fmt::format("  {}{}{}\n", positions_text(model),
                      model.sliding_window > 0 ? fmt::format(", attention window {}", model.sliding_window) : "",
                      model.tied_embeddings ? ", tied embeddings" : "");
  text += fmt::format("  training: {:.4g} GFLOP per token at sequence length {}\n\n",
                      training_flops_per_token(model, sequence_length) * 1e-9, sequence_length);
  text += fmt::format("  {:<12} {:>6} {:<19} {:>17} {:>16} {:>20}\n", "layer", "layers", "weight", "shape",
                      "parameters", "forward FLOP/token");
  for (const LayerRow& row : layer_table(model, sequence_length)) text += row_text(row);
  return text + "  (parameters and FLOP are per layer)\n";
}

}  // namespace foresail
