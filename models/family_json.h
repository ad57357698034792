// A model family: how its config.json is read and written and what its weights are called. One *_json.cpp file per
// family; the registry is in family_json.cpp.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "models/model_spec.h"
#include "models/weight_names.h"

namespace foresail {

struct Family {
  std::string_view name;                        ///< "model_type" in config.json, and ModelSpec::family
  std::vector<std::string_view> architectures;  ///< accepted in "architectures"; the first is written
  ModelSpec (*read)(const JsonObject& config);
  /// Adds the family's own keys to `config`, which holds model_type and architectures already.
  void (*write)(const ModelSpec& model, Json& config);
  const WeightNames* weights;
};

const Family& gpt2_family();
const Family& llama_family();
const Family& mistral_family();
const Family& qwen2_family();
const Family& qwen3_family();
/// Every known family.
std::span<const Family* const> families();

/// The defaults of a decoder with rotary positions, RMS norms and SwiGLU, as the family's documentation gives them.
struct DecoderDefaults {
  int64_t vocabulary = 0, hidden = 0, ffn = 0, layers = 0, heads = 0;
  int64_t kv_heads = 0;  ///< 0: as many as heads
  int64_t head_dim = 0;  ///< 0: hidden / heads
  int64_t max_positions = 0;
  double rope_theta = 10000;
};

/// Reads the keys that Llama, Mistral and Qwen share; the caller adds what is its own.
ModelSpec read_decoder(const JsonObject& config, const DecoderDefaults& defaults);
void write_decoder(const ModelSpec& model, Json& config);

/// Sliding windows as Qwen states them (use_sliding_window, sliding_window, max_window_layers, layer_types): 0 if every
/// layer sees everything, the window if every layer has it. Throws bad_input where layers differ.
int64_t read_qwen_window(const JsonObject& config, int64_t layers);
void write_qwen_window(const ModelSpec& model, Json& config);

/// A size under `key` or one of its aliases; throws bad_input if two of them disagree.
int64_t read_size(const JsonObject& config, const std::vector<std::string>& keys, int64_t fallback, int64_t most);
/// A probability in [0, 1).
double read_probability(const JsonObject& config, const std::string& key, double fallback);
/// Throws bad_input unless heads, KV heads, head size and the width of the model go together.
void check_heads(const JsonObject& config, const ModelSpec& model);

// Bounds of sizes: far above any model, low enough that no product of them overflows 64 bits.
inline constexpr int64_t kMostLayers = 4096;
inline constexpr int64_t kMostHidden = int64_t{1} << 20;
inline constexpr int64_t kMostHeads = int64_t{1} << 14;
inline constexpr int64_t kMostHeadDim = int64_t{1} << 13;
inline constexpr int64_t kMostAttention = int64_t{1} << 21;  // heads * head_dim
inline constexpr int64_t kMostFfn = int64_t{1} << 23;
inline constexpr int64_t kMostVocabulary = int64_t{1} << 24;
inline constexpr int64_t kMostPositions = int64_t{1} << 28;

}  // namespace foresail
