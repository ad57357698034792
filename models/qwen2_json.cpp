// Qwen2 and Qwen2.5 (Yang et al. 2024): Llama with biases on q, k and v.
#include <algorithm>

#include <fmt/format.h>

#include "models/family_json.h"

namespace foresail {
namespace {

constexpr DecoderDefaults kDefaults{.vocabulary = 151936,
                                    .hidden = 4096,
                                    .ffn = 22016,
                                    .layers = 32,
                                    .heads = 32,
                                    .kv_heads = 32,
                                    .head_dim = 0,
                                    .max_positions = 32768,
                                    .rope_theta = 10000};
constexpr int64_t kDefaultWindow = 4096;
constexpr int64_t kDefaultWindowLayers = 28;

ModelSpec read(const JsonObject& config) {
  ModelSpec model = read_decoder(config, kDefaults);
  model.qkv_bias = true;
  model.sliding_window = read_qwen_window(config, model.layers);
  if (config.get_bool("use_mrope", false)) {
    config.fail("use_mrope", "multimodal rotary positions are not supported", "use a text model");
  }
  return model;
}

void write(const ModelSpec& model, Json& config) {
  write_decoder(model, config);
  write_qwen_window(model, config);
}

/// Layers with a window according to layer_types; -1 if the key is missing.
int64_t windowed_by_layer_types(const JsonObject& config, int64_t layers) {
  const std::string key = "layer_types";
  if (!config.has(key)) return -1;
  const Json& types = config.raw().at(key);
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers) {
    config.fail(key, fmt::format("is not a list of {} entries", layers), "give one entry per layer");
  }
  int64_t windowed = 0;
  for (const Json& type : types) {
    if (type == "sliding_attention") {
      ++windowed;
    } else if (type != "full_attention") {
      config.fail(key,
                  fmt::format("entry {} is not supported", type.dump(-1, ' ', true, Json::error_handler_t::replace)),
                  "use full_attention or sliding_attention");
    }
  }
  return windowed;
}

}  // namespace

int64_t read_qwen_window(const JsonObject& config, int64_t layers) {
  const bool used = config.get_bool("use_sliding_window", false);
  const int64_t listed = windowed_by_layer_types(config, layers);
  if (!used) {
    if (listed > 0) {
      config.fail("layer_types", "asks for sliding_attention, but use_sliding_window is false", "make the two agree");
    }
    return 0;
  }
  const int64_t first = config.get_int("max_window_layers", kDefaultWindowLayers, 0, kMostLayers);
  const int64_t windowed = listed >= 0 ? listed : std::max<int64_t>(layers - first, 0);
  if (windowed == 0) return 0;
  if (windowed != layers) {
    config.fail(
        listed >= 0 ? "layer_types" : "max_window_layers",
        fmt::format("{} of {} layers have a sliding window; layers that differ are not supported", windowed, layers),
        "use a model whose layers are alike");
  }
  return read_size(config, {"sliding_window"}, kDefaultWindow, kMostPositions);
}

void write_qwen_window(const ModelSpec& model, Json& config) {
  config["use_sliding_window"] = model.sliding_window > 0;
  config["sliding_window"] = model.sliding_window > 0 ? Json(model.sliding_window) : Json(nullptr);
  config["max_window_layers"] = model.sliding_window > 0 ? int64_t{0} : model.layers;
}

const Family& qwen2_family() {
  static const Family kFamily{"qwen2", {"Qwen2ForCausalLM", "Qwen2Model"}, read, write, &llama_weight_names()};
  return kFamily;
}

}  // namespace foresail
