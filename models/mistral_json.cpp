// Mistral 7B and its dense successors (Jiang et al. 2023): Llama with a sliding attention window.
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
                                    .rope_theta = 10000};
constexpr int64_t kDefaultWindow = 4096;

ModelSpec read(const JsonObject& config) {
  ModelSpec model = read_decoder(config, kDefaults);
  // A missing key means the default window; null means none.
  const int64_t fallback = config.raw().contains("sliding_window") ? 0 : kDefaultWindow;
  model.sliding_window = read_size(config, {"sliding_window"}, fallback, kMostPositions);
  return model;
}

void write(const ModelSpec& model, Json& config) {
  write_decoder(model, config);
  config["sliding_window"] = model.sliding_window > 0 ? Json(model.sliding_window) : Json(nullptr);
}

}  // namespace

const Family& mistral_family() {
  static const Family kFamily{"mistral", {"MistralForCausalLM", "MistralModel"}, read, write, &llama_weight_names()};
  return kFamily;
}

}  // namespace foresail
