// Llama 2 and 3 (Touvron et al. 2023; Dubey et al. 2024).
#include "models/family_json.h"

namespace foresail {
namespace {

constexpr DecoderDefaults kDefaults{.vocabulary = 32000,
                                    .hidden = 4096,
                                    .ffn = 11008,
                                    .layers = 32,
                                    .heads = 32,
                                    .kv_heads = 0,
                                    .head_dim = 0,
                                    .max_positions = 2048,
                                    .rope_theta = 10000};

ModelSpec read(const JsonObject& config) {
  ModelSpec model = read_decoder(config, kDefaults);
  model.qkv_bias = model.attention_out_bias = config.get_bool("attention_bias", false);
  model.mlp_bias = config.get_bool("mlp_bias", false);
  return model;
}

void write(const ModelSpec& model, Json& config) {
  write_decoder(model, config);
  config["attention_bias"] = model.qkv_bias;
  config["mlp_bias"] = model.mlp_bias;
}

}  // namespace

const Family& llama_family() {
  static const Family kFamily{"llama", {"LlamaForCausalLM", "LlamaModel"}, read, write, &llama_weight_names()};
  return kFamily;
}

}  // namespace foresail
