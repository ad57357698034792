// Qwen3 with a mixture of experts (Yang et al. 2025).
#include <fmt/format.h>

#include "models/family_json.h"

namespace foresail {
namespace {

constexpr DecoderDefaults kDefaults{.vocabulary = 151936,
                                    .hidden = 2048,
                                    .ffn = 6144,
                                    .layers = 24,
                                    .heads = 32,
                                    .kv_heads = 4,
                                    .head_dim = 0,
                                    .max_positions = 32768,
                                    .rope_theta = 10000};
constexpr int64_t kDefaultExperts = 128, kDefaultExpertsPerToken = 8, kDefaultExpertFfn = 768;

/// mlp_only_layers as a number of leading layers.
int64_t read_dense_layers(const JsonObject& config, int64_t layers) {
  const std::vector<int64_t> dense = config.get_ints("mlp_only_layers");
  for (size_t i = 0; i < dense.size(); ++i) {
    if (dense[i] != static_cast<int64_t>(i)) {
      config.fail("mlp_only_layers", "dense layers that are not the first ones in order are not supported",
                  "list 0, 1, ... or nothing");
    }
  }
  if (static_cast<int64_t>(dense.size()) >= layers) {
    config.fail("mlp_only_layers", fmt::format("leaves none of {} layers with experts", layers),
                "use model_type qwen3 for a dense model");
  }
  return static_cast<int64_t>(dense.size());
}

ModelSpec read(const JsonObject& config) {
  ModelSpec model = read_decoder(config, kDefaults);
  model.qk_norm = true;
  model.qkv_bias = model.attention_out_bias = config.get_bool("attention_bias", false);
  model.sliding_window = read_qwen_window(config, model.layers);
  if (config.get_int("decoder_sparse_step", 1, 0, kMostLayers) != 1) {
    config.fail("decoder_sparse_step", "experts in some of the layers only are not supported", "set it to 1");
  }
  ExpertSpec& moe = model.moe;
  moe.experts = read_size(config, {"num_experts", "num_local_experts"}, kDefaultExperts, kMostExperts);
  moe.experts_per_token = read_size(config, {"num_experts_per_tok"}, kDefaultExpertsPerToken, kMostExperts);
  moe.expert_ffn = read_size(config, {"moe_intermediate_size"}, kDefaultExpertFfn, kMostFfn);
  moe.first_dense_layers = read_dense_layers(config, model.layers);
  moe.normalise_gates = config.get_bool("norm_topk_prob", false);
  read_router_losses(config, moe);
  check_experts(config, moe, "num_experts", "num_experts_per_tok");
  return model;
}

void write(const ModelSpec& model, Json& config) {
  write_decoder(model, config);
  config["attention_bias"] = model.qkv_bias;
  write_qwen_window(model, config);
  config["decoder_sparse_step"] = 1;
  config["num_experts"] = model.moe.experts;
  config["num_experts_per_tok"] = model.moe.experts_per_token;
  config["moe_intermediate_size"] = model.moe.expert_ffn;
  Json dense = Json::array();
  for (int64_t layer = 0; layer < model.moe.first_dense_layers; ++layer) dense.push_back(layer);
  config["mlp_only_layers"] = std::move(dense);
  config["norm_topk_prob"] = model.moe.normalise_gates;
  write_router_losses(model.moe, config);
}

const WeightNames& names() {
  static const WeightNames kNames = [] {
    WeightNames names = llama_weight_names();
    names.experts.router = "model.layers.{}.mlp.gate";
    names.experts.gate = "model.layers.{}.mlp.experts.{e}.gate_proj";
    names.experts.up = "model.layers.{}.mlp.experts.{e}.up_proj";
    names.experts.down = "model.layers.{}.mlp.experts.{e}.down_proj";
    return names;
  }();
  return kNames;
}

}  // namespace

const Family& qwen3_moe_family() {
  static const Family kFamily{"qwen3_moe", {"Qwen3MoeForCausalLM", "Qwen3MoeModel"}, read, write, &names(), true};
  return kFamily;
}

}  // namespace foresail
