// The config.json keys that mixtures of experts share, whatever the family.
#include <fmt/format.h>

#include "models/family_json.h"

namespace foresail {
namespace {

constexpr double kMostCoefficient = 1e6;

}  // namespace

void read_router_losses(const JsonObject& config, ExpertSpec& moe) {
  if (config.get_bool("output_router_logits", false) &&
      config.get_number("router_aux_loss_coef", 0.001, 0, kMostCoefficient) > 0) {
    config.fail("output_router_logits",
                "adds a loss over all tokens of a batch and all layers, which would depend on "
                "how the batch is cut",
                "set it to false and state aux_loss_alpha, a balance loss per sequence");
  }
  if (config.get_number("router_jitter_noise", 0, 0, 1) > 0) {
    config.fail("router_jitter_noise", "noise on the router's input is not supported", "set it to 0");
  }
  moe.balance_coefficient = config.get_number("aux_loss_alpha", 0, 0, kMostCoefficient);
  moe.z_coefficient = config.get_number("router_z_loss_coef", 0, 0, kMostCoefficient);
  if (moe.balance_coefficient > 0 && !config.get_bool("seq_aux", true)) {
    config.fail("seq_aux", "a balance loss over the tokens of a batch would depend on how the batch is cut",
                "set it to true: one per sequence");
  }
}

void write_router_losses(const ExpertSpec& moe, Json& config) {
  config["output_router_logits"] = false;
  config["aux_loss_alpha"] = moe.balance_coefficient;
  config["seq_aux"] = true;
  config["router_z_loss_coef"] = moe.z_coefficient;
}

void check_experts(const JsonObject& config, const ExpertSpec& moe, const std::string& experts_key,
                   const std::string& chosen_key) {
  if (moe.experts_per_token > moe.experts) {
    config.fail(chosen_key, fmt::format("a token cannot choose {} of {} experts", moe.experts_per_token, moe.experts),
                "give at most " + experts_key);
  }
  if (moe.experts * moe.expert_ffn > kMostExpertWidth) {
    config.fail(experts_key, fmt::format("{} experts of width {} are absurdly many", moe.experts, moe.expert_ffn),
                fmt::format("keep experts x width at most {}", kMostExpertWidth));
  }
}

}  // namespace foresail
