// DeepSeek-V2 and V2-Lite (DeepSeek-AI 2024): latent attention, experts chosen by softmax scores, in V2 from the best
// groups. Follows the modelling code that was published with the weights.
#include <fmt/format.h>

#include "models/family_json.h"

namespace foresail {
namespace {

constexpr DeepseekDefaults kDefaults{.decoder = {.vocabulary = 32000,
                                                 .hidden = 4096,
                                                 .ffn = 11008,
                                                 .layers = 32,
                                                 .heads = 32,
                                                 .kv_heads = 0,
                                                 .head_dim = 0,
                                                 .max_positions = 2048,
                                                 .rope_theta = 10000,
                                                 .norm_epsilon = 1e-6,
                                                 .latent_attention = true},
                                     .experts = 64,
                                     .experts_per_token = 0,
                                     .expert_ffn = 1407,
                                     .shared_experts = 2,
                                     .first_dense_layers = 0};
constexpr double kMostGateScale = 1e6;

void read_router(const JsonObject& config, ExpertSpec& moe) {
  const std::string scoring = config.get_string("scoring_func", "softmax");
  if (scoring != "softmax") {
    config.fail("scoring_func", fmt::format("'{}' is not supported in this family", scoring), "use softmax");
  }
  const std::string method = config.get_string("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    read_groups(config, 1, 1, moe);
  } else if (method != "greedy") {
    config.fail("topk_method", fmt::format("'{}' is not supported in this family", method),
                "use greedy or group_limited_greedy");
  }
  moe.scoring = RouterScoring::softmax;
  moe.group_score = GroupScore::best_expert;
  moe.gate_scale = config.get_number("routed_scaling_factor", 1, 1e-6, kMostGateScale);
  moe.normalise_gates = config.get_bool("norm_topk_prob", false);
  if (moe.normalise_gates) {
    config.fail("norm_topk_prob", "published code disagrees on what it means in this family", "set it to false");
  }
}

ModelSpec read(const JsonObject& config) {
  ModelSpec model = read_deepseek(config, kDefaults);
  if (model.moe.experts > 0) read_router(config, model.moe);
  return model;
}

void write(const ModelSpec& model, Json& config) {
  write_deepseek(model, config);
  if (model.moe.experts == 0) return;
  config["scoring_func"] = "softmax";
  config["topk_method"] = model.moe.groups > 1 ? "group_limited_greedy" : "greedy";
}

}  // namespace

const Family& deepseek_v2_family() {
  static const Family kFamily{
      "deepseek_v2", {"DeepseekV2ForCausalLM", "DeepseekV2Model"}, read, write, &deepseek_weight_names(), true};
  return kFamily;
}

}  // namespace foresail
