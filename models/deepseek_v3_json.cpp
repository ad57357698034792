// DeepSeek-V3 (DeepSeek-AI 2024): latent attention, experts chosen by sigmoid scores plus a correction bias from the
// groups whose best two score highest.
#include <fmt/format.h>

#include "models/family_json.h"

namespace foresail {
namespace {

constexpr DeepseekDefaults kDefaults{.decoder = {.vocabulary = 129280,
                                                 .hidden = 7168,
                                                 .ffn = 18432,
                                                 .layers = 61,
                                                 .heads = 128,
                                                 .kv_heads = 0,
                                                 .head_dim = 0,
                                                 .max_positions = 4096,
                                                 .rope_theta = 10000,
                                                 .norm_epsilon = 1e-6,
                                                 .latent_attention = true},
                                     .experts = 256,
                                     .experts_per_token = 8,
                                     .expert_ffn = 2048,
                                     .shared_experts = 1,
                                     .first_dense_layers = 3};
constexpr int64_t kDefaultGroups = 8, kDefaultGroupsPerToken = 4;
constexpr double kDefaultGateScale = 2.5, kMostGateScale = 1e6;

void read_router(const JsonObject& config, ExpertSpec& moe) {
  const std::string scoring = config.get_string("scoring_func", "sigmoid");
  if (scoring != "sigmoid") {
    config.fail("scoring_func", fmt::format("'{}' is not supported in this family", scoring), "use sigmoid");
  }
  const std::string method = config.get_string("topk_method", "noaux_tc");
  if (method != "noaux_tc") {
    config.fail("topk_method", fmt::format("'{}' is not supported in this family", method), "use noaux_tc");
  }
  read_groups(config, kDefaultGroups, kDefaultGroupsPerToken, moe);
  if (moe.groups > 1 && moe.experts / moe.groups < 2) {
    config.fail("n_group", "groups are ranked by their best two experts, but have one each", "give fewer groups");
  }
  moe.scoring = RouterScoring::sigmoid;
  moe.group_score = GroupScore::sum_of_best_two;
  moe.correction_bias = true;
  moe.gate_scale = config.get_number("routed_scaling_factor", kDefaultGateScale, 1e-6, kMostGateScale);
  moe.normalise_gates = config.get_bool("norm_topk_prob", true);
}

ModelSpec read(const JsonObject& config) {
  ModelSpec model = read_deepseek(config, kDefaults);
  if (model.moe.experts > 0) read_router(config, model.moe);
  return model;
}

void write(const ModelSpec& model, Json& config) {
  write_deepseek(model, config);
  if (model.moe.experts == 0) return;
  config["scoring_func"] = "sigmoid";
  config["topk_method"] = "noaux_tc";
}

}  // namespace

const Family& deepseek_v3_family() {
  static const Family kFamily{
      "deepseek_v3", {"DeepseekV3ForCausalLM", "DeepseekV3Model"}, read, write, &deepseek_weight_names(), true, true};
  return kFamily;
}

}  // namespace foresail
