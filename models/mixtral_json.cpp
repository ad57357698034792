// Mixtral (Jiang et al. 2024): Mistral with a mixture of experts in every layer.
#include "models/family_json.h"

namespace foresail {
namespace {

constexpr DecoderDefaults kDefaults{.vocabulary = 32000,
                                    .hidden = 4096,
                                    .ffn = 14336,
                                    .layers = 32,
                                    .heads = 32,
                                    .kv_heads = 8,
                                    .head_dim = 0,
                                    .max_positions = 131072,
                                    .rope_theta = 1e6,
                                    .norm_epsilon = 1e-5};
constexpr int64_t kDefaultExperts = 8, kDefaultExpertsPerToken = 2;

ModelSpec read(const JsonObject& config) {
  ModelSpec model = read_decoder(config, kDefaults);
  model.sliding_window = read_size(config, {"sliding_window"}, 0, kMostPositions);
  model.moe.experts = read_size(config, {"num_local_experts", "num_experts"}, kDefaultExperts, kMostExperts);
  model.moe.experts_per_token = read_size(config, {"num_experts_per_tok"}, kDefaultExpertsPerToken, kMostExperts);
  model.moe.expert_ffn = model.ffn;
  read_router_losses(config, model.moe);
  check_experts(config, model.moe, "num_local_experts", "num_experts_per_tok");
  return model;
}

void write(const ModelSpec& model, Json& config) {
  write_decoder(model, config);
  config["sliding_window"] = model.sliding_window > 0 ? Json(model.sliding_window) : Json(nullptr);
  config["num_local_experts"] = model.moe.experts;
  config["num_experts_per_tok"] = model.moe.experts_per_token;
  write_router_losses(model.moe, config);
}

const WeightNames& names() {
  static const WeightNames kNames = [] {
    WeightNames names = llama_weight_names();
    names.experts.router = "model.layers.{}.block_sparse_moe.gate";
    names.experts.gate = "model.layers.{}.block_sparse_moe.experts.{e}.w1";
    names.experts.down = "model.layers.{}.block_sparse_moe.experts.{e}.w2";
    names.experts.up = "model.layers.{}.block_sparse_moe.experts.{e}.w3";
    return names;
  }();
  return kNames;
}

}  // namespace

const Family& mixtral_family() {
  static const Family kFamily{"mixtral", {"MixtralForCausalLM", "MixtralModel"}, read, write, &names(), true};
  return kFamily;
}

}  // namespace foresail
