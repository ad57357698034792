// What DeepSeek-V2 and DeepSeek-V3 share: multi-head latent attention, leading dense layers, shared experts.
// num_nextn_predict_layers is not read: the layers that predict further tokens are no part of the model, here as in
// transformers.
#include <fmt/format.h>

#include "models/family_json.h"

namespace foresail {
namespace {

void refuse_unsupported(const JsonObject& config) {
  for (const std::string key : {"attention_bias", "mlp_bias"}) {
    if (config.get_bool(key, false)) config.fail(key, "is not supported in this family", "set it to false");
  }
  if (!config.get_bool("rope_interleave", true)) {
    config.fail("rope_interleave", "false is not supported: pairs of neighbours are rotated", "set it to true");
  }
  if (config.get_int("moe_layer_freq", 1, 1, kMostLayers) != 1) {
    config.fail("moe_layer_freq", "experts in some of the layers only are not supported", "set it to 1");
  }
}

constexpr int64_t kDefaultQueryRank = 1536, kDefaultKvRank = 512;
constexpr int64_t kDefaultNopeDim = 128, kDefaultRopeDim = 64, kDefaultValueDim = 128;

void read_latent(const JsonObject& config, ModelSpec& model) {
  LatentAttentionSpec& latent = model.latent;
  const bool whole_queries = config.raw().contains("q_lora_rank") && !config.has("q_lora_rank");  // null
  latent.query_rank = whole_queries ? 0 : read_size(config, {"q_lora_rank"}, kDefaultQueryRank, kMostHidden);
  latent.kv_rank = read_size(config, {"kv_lora_rank"}, kDefaultKvRank, kMostHidden);
  latent.nope_dim = read_size(config, {"qk_nope_head_dim"}, kDefaultNopeDim, kMostHeadDim);
  latent.rope_dim = read_size(config, {"qk_rope_head_dim"}, kDefaultRopeDim, kMostHeadDim);
  latent.value_dim = read_size(config, {"v_head_dim"}, kDefaultValueDim, kMostHeadDim);
  model.head_dim = latent.nope_dim + latent.rope_dim;
  if (config.get_int("head_dim", latent.rope_dim, 1, kMostHeadDim) != latent.rope_dim) {
    config.fail("head_dim", "is not qk_rope_head_dim, as this family means it", "leave it out");
  }
  if (latent.rope_dim % 2 != 0) {
    config.fail("qk_rope_head_dim", fmt::format("{} is odd, but rotary positions turn pairs", latent.rope_dim),
                "give an even number");
  }
  if (model.kv_heads != model.heads) {
    config.fail("num_key_value_heads",
                fmt::format("{} differs from {} attention heads, which all have a key of their own", model.kv_heads,
                            model.heads),
                "give num_attention_heads");
  }
  if (model.heads * latent.value_dim > kMostAttention) {
    config.fail("v_head_dim", fmt::format("{} heads of {} are absurdly wide", model.heads, latent.value_dim),
                fmt::format("keep heads x v_head_dim at most {}", kMostAttention));
  }
  check_heads(config, model);
}

/// n_routed_experts = null, or more leading dense layers than there are layers: a dense model.
void read_experts(const JsonObject& config, const DeepseekDefaults& defaults, ModelSpec& model) {
  const int64_t first = config.get_int("first_k_dense_replace", defaults.first_dense_layers, 0, kMostLayers);
  const bool dense = config.raw().contains("n_routed_experts") && !config.has("n_routed_experts");
  if (dense || first >= model.layers) return;
  ExpertSpec& moe = model.moe;
  moe.first_dense_layers = first;
  moe.experts =
      read_size(config, {"n_routed_experts", "num_experts", "num_local_experts"}, defaults.experts, kMostExperts);
  if (defaults.experts_per_token == 0 && !config.has("num_experts_per_tok")) {
    config.fail("num_experts_per_tok", "is missing", "say how many experts a token has");
  }
  moe.experts_per_token = read_size(config, {"num_experts_per_tok"}, defaults.experts_per_token, kMostExperts);
  moe.expert_ffn = read_size(config, {"moe_intermediate_size"}, defaults.expert_ffn, kMostFfn);
  const bool none_shared = config.raw().contains("n_shared_experts") && !config.has("n_shared_experts");
  const int64_t shared = config.get_int("n_shared_experts", none_shared ? 0 : defaults.shared_experts, 0, kMostExperts);
  moe.shared_ffn = shared * moe.expert_ffn;
  if (moe.shared_ffn > kMostFfn) {
    config.fail("n_shared_experts", fmt::format("{} shared experts are absurdly wide", shared),
                fmt::format("keep their width together at most {}", kMostFfn));
  }
  read_router_losses(config, moe);
  check_experts(config, moe, "n_routed_experts", "num_experts_per_tok");
}

}  // namespace

ModelSpec read_deepseek(const JsonObject& config, const DeepseekDefaults& defaults) {
  refuse_unsupported(config);
  ModelSpec model = read_decoder(config, defaults.decoder);
  read_latent(config, model);
  read_experts(config, defaults, model);
  return model;
}

void read_groups(const JsonObject& config, int64_t default_groups, int64_t default_used, ExpertSpec& moe) {
  moe.groups = read_size(config, {"n_group"}, default_groups, kMostExperts);
  moe.groups_per_token = read_size(config, {"topk_group"}, default_used, kMostExperts);
  if (moe.experts % moe.groups != 0) {
    config.fail("n_group", fmt::format("{} groups do not divide {} experts", moe.groups, moe.experts),
                "give a divisor of n_routed_experts");
  }
  if (moe.groups_per_token > moe.groups) {
    config.fail("topk_group", fmt::format("a token cannot use {} of {} groups", moe.groups_per_token, moe.groups),
                "give at most n_group");
  }
  const int64_t held = moe.groups_per_token * (moe.experts / moe.groups);
  if (held < moe.experts_per_token) {
    config.fail("topk_group",
                fmt::format("{} groups hold {} experts, fewer than num_experts_per_tok = {}", moe.groups_per_token,
                            held, moe.experts_per_token),
                "give more groups or fewer experts per token");
  }
}

void write_deepseek(const ModelSpec& model, Json& config) {
  write_decoder(model, config);
  const LatentAttentionSpec& latent = model.latent;
  config["q_lora_rank"] = latent.query_rank > 0 ? Json(latent.query_rank) : Json(nullptr);
  config["kv_lora_rank"] = latent.kv_rank;
  config["qk_nope_head_dim"] = latent.nope_dim;
  config["qk_rope_head_dim"] = latent.rope_dim;
  config["v_head_dim"] = latent.value_dim;
  config["head_dim"] = latent.rope_dim;
  config["rope_interleave"] = true;
  config["attention_bias"] = false;
  const ExpertSpec& moe = model.moe;
  config["n_routed_experts"] = moe.experts > 0 ? Json(moe.experts) : Json(nullptr);
  if (moe.experts == 0) return;
  config["moe_layer_freq"] = 1;
  config["first_k_dense_replace"] = moe.first_dense_layers;
  config["num_experts_per_tok"] = moe.experts_per_token;
  config["moe_intermediate_size"] = moe.expert_ffn;
  config["n_shared_experts"] = moe.shared_ffn > 0 ? Json(moe.shared_ffn / moe.expert_ffn) : Json(nullptr);
  config["n_group"] = moe.groups;
  config["topk_group"] = moe.groups_per_token;
  config["routed_scaling_factor"] = moe.gate_scale;
  config["norm_topk_prob"] = moe.normalise_gates;
  write_router_losses(moe, config);
}

const WeightNames& deepseek_weight_names() {
  static const WeightNames kNames = [] {
    WeightNames names = llama_weight_names();
    names.key = names.value = names.query_norm = names.key_norm = "";
    names.latent = {.query_down = "model.layers.{}.self_attn.q_a_proj",
                    .query_norm = "model.layers.{}.self_attn.q_a_layernorm",
                    .query_up = "model.layers.{}.self_attn.q_b_proj",
                    .kv_down = "model.layers.{}.self_attn.kv_a_proj_with_mqa",
                    .kv_norm = "model.layers.{}.self_attn.kv_a_layernorm",
                    .kv_up = "model.layers.{}.self_attn.kv_b_proj"};
    names.experts = {.router = "model.layers.{}.mlp.gate",
                     .correction_bias = "model.layers.{}.mlp.gate.e_score_correction_bias",
                     .gate = "model.layers.{}.mlp.experts.{e}.gate_proj",
                     .up = "model.layers.{}.mlp.experts.{e}.up_proj",
                     .down = "model.layers.{}.mlp.experts.{e}.down_proj",
                     .shared_gate = "model.layers.{}.mlp.shared_experts.gate_proj",
                     .shared_up = "model.layers.{}.mlp.shared_experts.up_proj",
                     .shared_down = "model.layers.{}.mlp.shared_experts.down_proj"};
    return names;
  }();
  return kNames;
}

}  // namespace foresail
