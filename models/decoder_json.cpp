// The config.json keys that Llama and its descendants share.
#include <algorithm>
#include <iterator>
#include <string_view>

#include <fmt/format.h>

#include "models/family_json.h"

namespace foresail {
namespace {

struct Rope {
  double theta = 0;
  RopeScaling scaling = RopeScaling::none;
  double factor = 1, low_frequency = 1, high_frequency = 4;
  int64_t original_positions = 0;
  double beta_fast = 32, beta_slow = 1, attention_factor = 0, mscale = 0, mscale_all_dim = 0;
  bool operator==(const Rope&) const = default;
};

constexpr double kMostTheta = 1e15;
constexpr double kMostFactor = 1e6;

struct ScalingName {
  std::string_view name;
  RopeScaling scaling;
};
constexpr ScalingName kScalings[] = {
    {"linear", RopeScaling::linear}, {"llama3", RopeScaling::llama3}, {"yarn", RopeScaling::yarn}};

/// Keys of a scaling object: "type" (old) or "rope_type" (new).
std::string scaling_name(const JsonObject& object) {
  const std::string old_name = object.get_string("type", "");
  const std::string name = object.get_string("rope_type", old_name.empty() ? "default" : old_name);
  if (!old_name.empty() && old_name != name) {
    object.fail("type", fmt::format("'{}' disagrees with rope_type = '{}'", old_name, name), "keep one of the two");
  }
  return name;
}

void read_llama3(const JsonObject& object, Rope& rope) {
  rope.low_frequency = object.require_number("low_freq_factor", 1e-3, kMostFactor);
  rope.high_frequency = object.require_number("high_freq_factor", 1e-3, kMostFactor);
  rope.original_positions = object.require_int("original_max_position_embeddings", 1, kMostPositions);
  if (rope.high_frequency <= rope.low_frequency) {
    object.fail("high_freq_factor", fmt::format("{} is not above low_freq_factor", rope.high_frequency),
                "give a larger number");
  }
}

void read_yarn(const JsonObject& object, int64_t max_positions, Rope& rope) {
  rope.original_positions = object.get_int("original_max_position_embeddings", max_positions, 1, kMostPositions);
  rope.beta_fast = object.get_number("beta_fast", 32, 1e-3, kMostFactor);
  rope.beta_slow = object.get_number("beta_slow", 1, 1e-3, kMostFactor);
  if (rope.beta_fast <= rope.beta_slow) {
    object.fail("beta_fast", fmt::format("{} is not above beta_slow", rope.beta_fast), "give a larger number");
  }
  if (object.has("attention_factor")) {
    rope.attention_factor = object.require_number("attention_factor", 1e-3, kMostFactor);
  }
  rope.mscale = object.get_number("mscale", 0, 0, kMostFactor);
  rope.mscale_all_dim = object.get_number("mscale_all_dim", 0, 0, kMostFactor);
  if ((rope.mscale > 0) != (rope.mscale_all_dim > 0)) {
    object.fail(rope.mscale > 0 ? "mscale_all_dim" : "mscale", "published code disagrees on what it means alone",
                "state both mscale and mscale_all_dim or neither");
  }
  if (!object.get_bool("truncate", true)) object.fail("truncate", "false is not supported", "leave it out");
}

/// One of rope_scaling and rope_parameters; `rope.theta` holds what is known so far.
Rope read_rope_object(const JsonObject& object, int64_t max_positions, Rope rope) {
  rope.theta = object.get_number("rope_theta", rope.theta, 1, kMostTheta);
  if (object.get_number("partial_rotary_factor", 1, 0, 1) != 1) {
    object.fail("partial_rotary_factor", "rotating a part of each head is not supported",
                "use a model that rotates all");
  }
  const std::string name = scaling_name(object);
  if (name == "default") return rope;
  const auto* const found =
      std::find_if(std::begin(kScalings), std::end(kScalings), [&](const auto& known) { return known.name == name; });
  if (found == std::end(kScalings)) {
    object.fail(object.has("rope_type") ? "rope_type" : "type", fmt::format("RoPE scaling '{}' is not supported", name),
                "use default, linear, llama3 or yarn");
  }
  rope.scaling = found->scaling;
  rope.factor = object.require_number("factor", 1, kMostFactor);
  if (rope.scaling == RopeScaling::llama3) read_llama3(object, rope);
  if (rope.scaling == RopeScaling::yarn) read_yarn(object, max_positions, rope);
  return rope;
}

/// Old spelling: rope_theta and rope_scaling; new: rope_parameters. Both may be there if they agree.
Rope read_rope(const JsonObject& config, double default_theta, int64_t max_positions) {
  Rope base;
  base.theta = config.get_number("rope_theta", default_theta, 1, kMostTheta);
  const bool old_spelling = config.has("rope_scaling"), new_spelling = config.has("rope_parameters");
  const Rope old_rope =
      old_spelling ? read_rope_object(config.require_object("rope_scaling"), max_positions, base) : base;
  if (config.has("rope_theta") && old_rope.theta != base.theta) {
    config.fail("rope_scaling", "its rope_theta disagrees with the config's own", "keep one of the two");
  }
  if (!new_spelling) return old_rope;
  const Rope new_rope = read_rope_object(config.require_object("rope_parameters"), max_positions, base);
  if ((config.has("rope_theta") && new_rope.theta != base.theta) || (old_spelling && new_rope != old_rope)) {
    config.fail("rope_parameters", "disagrees with rope_theta or rope_scaling", "keep one of the two spellings");
  }
  return new_rope;
}

/// A missing num_key_value_heads means the family's default, null means as many as heads.
int64_t read_kv_heads(const JsonObject& config, const DecoderDefaults& defaults, int64_t heads) {
  const std::string key = "num_key_value_heads";
  if (!config.raw().contains(key) && defaults.kv_heads > 0) return defaults.kv_heads;
  return read_size(config, {key}, heads, kMostHeads);
}

int64_t read_head_dim(const JsonObject& config, const DecoderDefaults& defaults, const ModelSpec& model) {
  if (config.has("head_dim")) return config.require_int("head_dim", 1, kMostHeadDim);
  if (!config.raw().contains("head_dim") && defaults.head_dim > 0) return defaults.head_dim;
  if (model.hidden % model.heads != 0) {
    config.fail("hidden_size", fmt::format("{} is not divisible by {} attention heads", model.hidden, model.heads),
                "change one of them or state head_dim");
  }
  return model.hidden / model.heads;
}

void read_rope_into(const JsonObject& config, double default_theta, ModelSpec& model) {
  const Rope rope = read_rope(config, default_theta, model.max_positions);
  model.rope_theta = rope.theta;
  model.rope_scaling = rope.scaling;
  model.rope_factor = rope.factor;
  model.rope_low_frequency = rope.low_frequency;
  model.rope_high_frequency = rope.high_frequency;
  model.rope_original_positions = rope.original_positions;
  model.rope_beta_fast = rope.beta_fast;
  model.rope_beta_slow = rope.beta_slow;
  model.rope_attention_factor = rope.attention_factor;
  model.rope_mscale = rope.mscale;
  model.rope_mscale_all_dim = rope.mscale_all_dim;
}

std::string scaling_name(RopeScaling scaling) {
  for (const ScalingName& known : kScalings) {
    if (known.scaling == scaling) return std::string(known.name);
  }
  return "default";
}

Json rope_scaling_json(const ModelSpec& model) {
  Json scaling = Json::object();
  scaling["rope_type"] = scaling_name(model.rope_scaling);
  if (model.rope_scaling == RopeScaling::none) return scaling;
  scaling["factor"] = model.rope_factor;
  if (model.rope_scaling == RopeScaling::linear) return scaling;
  scaling["original_max_position_embeddings"] = model.rope_original_positions;
  if (model.rope_scaling == RopeScaling::llama3) {
    scaling["low_freq_factor"] = model.rope_low_frequency;
    scaling["high_freq_factor"] = model.rope_high_frequency;
    return scaling;
  }
  scaling["beta_fast"] = model.rope_beta_fast;
  scaling["beta_slow"] = model.rope_beta_slow;
  if (model.rope_attention_factor > 0) scaling["attention_factor"] = model.rope_attention_factor;
  if (model.rope_mscale > 0) {
    scaling["mscale"] = model.rope_mscale;
    scaling["mscale_all_dim"] = model.rope_mscale_all_dim;
  }
  return scaling;
}

/// Readers from before rope_type know "type"; llama3 scaling came with rope_type, and linear scaling in them takes
/// exactly "type" and "factor".
Json old_rope_scaling_json(const ModelSpec& model) {
  if (model.rope_scaling == RopeScaling::none) return nullptr;
  Json scaling = rope_scaling_json(model);
  if (model.rope_scaling == RopeScaling::llama3) return scaling;
  scaling.erase("rope_type");
  scaling["type"] = scaling_name(model.rope_scaling);
  return scaling;
}

}  // namespace

ModelSpec read_decoder(const JsonObject& config, const DecoderDefaults& defaults) {
  ModelSpec model;
  model.vocabulary = read_size(config, {"vocab_size"}, defaults.vocabulary, kMostVocabulary);
  model.hidden = read_size(config, {"hidden_size"}, defaults.hidden, kMostHidden);
  model.ffn = read_size(config, {"intermediate_size"}, defaults.ffn, kMostFfn);
  model.layers = read_size(config, {"num_hidden_layers"}, defaults.layers, kMostLayers);
  model.heads = read_size(config, {"num_attention_heads"}, defaults.heads, kMostHeads);
  model.kv_heads = read_kv_heads(config, defaults, model.heads);
  if (!defaults.latent_attention) model.head_dim = read_head_dim(config, defaults, model);
  model.max_positions = read_size(config, {"max_position_embeddings"}, defaults.max_positions, kMostPositions);
  const std::string activation = config.get_string("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    config.fail("hidden_act", fmt::format("activation '{}' is not supported", activation), "use silu");
  }
  model.norm = NormKind::rms_norm;
  model.norm_epsilon = config.get_number("rms_norm_eps", defaults.norm_epsilon, 1e-20, 1);
  model.activation = ActivationKind::swiglu;
  model.positions = PositionKind::rope;
  model.tied_embeddings = config.get_bool("tie_word_embeddings", false);
  model.attention_dropout = read_probability(config, "attention_dropout", 0);
  model.init_standard_deviation = config.get_number("initializer_range", 0.02, 1e-12, 100);
  if (config.get_number("partial_rotary_factor", 1, 0, 1) != 1) {
    config.fail("partial_rotary_factor", "rotating a part of each head is not supported",
                "use a model that rotates all");
  }
  read_rope_into(config, defaults.rope_theta, model);
  if (!defaults.latent_attention) check_heads(config, model);
  return model;
}

void write_decoder(const ModelSpec& model, Json& config) {
  config["vocab_size"] = model.vocabulary;
  config["hidden_size"] = model.hidden;
  config["intermediate_size"] = model.ffn;
  config["num_hidden_layers"] = model.layers;
  config["num_attention_heads"] = model.heads;
  config["num_key_value_heads"] = model.kv_heads;
  config["head_dim"] = model.head_dim;
  config["max_position_embeddings"] = model.max_positions;
  config["hidden_act"] = "silu";
  config["rms_norm_eps"] = model.norm_epsilon;
  config["tie_word_embeddings"] = model.tied_embeddings;
  config["attention_dropout"] = model.attention_dropout;
  config["initializer_range"] = model.init_standard_deviation;
  config["rope_theta"] = model.rope_theta;
  Json scaling = rope_scaling_json(model);
  scaling["rope_theta"] = model.rope_theta;
  config["rope_scaling"] = old_rope_scaling_json(model);
  config["rope_parameters"] = scaling;
}

}  // namespace foresail
