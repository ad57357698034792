#include "models/family_json.h"

#include <algorithm>
#include <array>
#include <limits>

#include <fmt/format.h>

#include "core/error.h"

namespace foresail {

std::span<const Family* const> families() {
  static const std::array kFamilies{&gpt2_family(),      &llama_family(),       &mistral_family(),
                                    &qwen2_family(),     &qwen3_family(),       &mixtral_family(),
                                    &qwen3_moe_family(), &deepseek_v2_family(), &deepseek_v3_family()};
  return kFamilies;
}

const WeightNames& weight_names(const ModelSpec& model) {
  const auto all = families();
  const auto found = std::find_if(all.begin(), all.end(), [&](const Family* f) { return f->name == model.family; });
  ensure(found != all.end(), "a ModelSpec names a known family");
  return *(*found)->weights;
}

const WeightNames& llama_weight_names() {
  static const WeightNames kNames{
      .token_embedding = "model.embed_tokens",
      .position_embedding = "",
      .norm_1 = "model.layers.{}.input_layernorm",
      .norm_2 = "model.layers.{}.post_attention_layernorm",
      .final_norm = "model.norm",
      .query = "model.layers.{}.self_attn.q_proj",
      .key = "model.layers.{}.self_attn.k_proj",
      .value = "model.layers.{}.self_attn.v_proj",
      .query_norm = "model.layers.{}.self_attn.q_norm",
      .key_norm = "model.layers.{}.self_attn.k_norm",
      .attention_out = "model.layers.{}.self_attn.o_proj",
      .gate = "model.layers.{}.mlp.gate_proj",
      .up = "model.layers.{}.mlp.up_proj",
      .down = "model.layers.{}.mlp.down_proj",
      .head = "lm_head",
      .transposed_in_file = false,
      .latent = {},
      .experts = {},
  };
  return kNames;
}

std::string expert_name(const std::string& name, int64_t expert) {
  const std::string place = "{e}";
  const size_t at = name.find(place);
  ensure(at != std::string::npos, "the name of an expert's weight has a place for its number");
  return std::string(name).replace(at, place.size(), std::to_string(expert));
}

int64_t read_size(const JsonObject& config, const std::vector<std::string>& keys, int64_t fallback, int64_t most) {
  const std::string* first = nullptr;
  int64_t size = fallback;
  for (const std::string& key : keys) {
    if (!config.has(key)) continue;
    const int64_t value = config.require_int(key, 1, most);
    if (first != nullptr && value != size) {
      config.fail(key, fmt::format("{} disagrees with {} = {}", value, *first, size), "keep one of the two");
    }
    first = &key;
    size = value;
  }
  return size;
}

double read_probability(const JsonObject& config, const std::string& key, double fallback) {
  const double probability = config.get_number(key, fallback, 0, 1);
  if (probability >= 1) config.fail(key, "1 would drop every value", "give a number from 0 up to, not including, 1");
  return probability;
}

void check_heads(const JsonObject& config, const ModelSpec& model) {
  if (model.heads * model.head_dim > kMostAttention) {
    config.fail("head_dim", fmt::format("{} heads of {} are absurdly wide", model.heads, model.head_dim),
                fmt::format("keep heads x head_dim at most {}", kMostAttention));
  }
  if (model.heads % model.kv_heads != 0) {
    config.fail("num_key_value_heads",
                fmt::format("{} key-value heads do not divide {} attention heads", model.kv_heads, model.heads),
                "give a divisor of num_attention_heads");
  }
  if (model.positions == PositionKind::rope && model.head_dim % 2 != 0) {
    config.fail("head_dim", fmt::format("{} is odd, but rotary positions turn pairs", model.head_dim),
                "give an even head_dim");
  }
}

}  // namespace foresail
