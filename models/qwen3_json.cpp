// Qwen3, dense (Yang et al. 2025): Llama with norms on each q and k head and a stated head size.
#include "models/family_json.h"

namespace foresail {
namespace {

constexpr DecoderDefaults kDefaults{.vocabulary = 151936,
                                    .hidden = 4096,
                                    .ffn = 22016,
                                    .layers = 32,
                                    .heads = 32,
                                    .kv_heads = 32,
                                    .head_dim = 128,
                                    .max_positions = 32768,
                                    .rope_theta = 10000};

ModelSpec read(const JsonObject& config) {
  ModelSpec model = read_decoder(config, kDefaults);
  model.qk_norm = true;
  model.qkv_bias = model.attention_out_bias = config.get_bool("attention_bias", false);
  model.sliding_window = read_qwen_window(config, model.layers);
  return model;
}

void write(const ModelSpec& model, Json& config) {
  write_decoder(model, config);
  config["attention_bias"] = model.qkv_bias;
  write_qwen_window(model, config);
}

}  // namespace

const Family& qwen3_family() {
  static const Family kFamily{"qwen3", {"Qwen3ForCausalLM", "Qwen3Model"}, read, write, &llama_weight_names()};
  return kFamily;
}

}  // namespace foresail
