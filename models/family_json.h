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
  bool reads_experts = false;       ///< keys of a mixture of experts are read, not refused
  bool reads_quantization = false;  ///< published quantized: the architecture is read, the quantization is not
};

const Family& gpt2_family();
const Family& llama_family();
const Family& mistral_family();
const Family& qwen2_family();
const Family& qwen3_family();
const Family& mixtral_family();
const Family& qwen3_moe_family();
const Family& deepseek_v2_family();
const Family& deepseek_v3_family();
/// Every known family.
std::span<const Family* const> families();

/// The defaults of a decoder with rotary positions, RMS norms and SwiGLU, as the family's documentation gives them.
struct DecoderDefaults {
  int64_t vocabulary = 0, hidden = 0, ffn = 0, layers = 0, heads = 0;
  int64_t kv_heads = 0;  ///< 0: as many as heads
  int64_t head_dim = 0;  ///< 0: hidden / heads
  int64_t max_positions = 0;
  double rope_theta = 10000;
  double norm_epsilon = 1e-6;
  bool latent_attention = false;  ///< the family states its head sizes by other keys and checks them itself
};

/// Reads the keys that Llama and its descendants share; the caller adds what is its own.
ModelSpec read_decoder(const JsonObject& config, const DecoderDefaults& defaults);
void write_decoder(const ModelSpec& model, Json& config);

/// Sliding windows as Qwen states them (use_sliding_window, sliding_window, max_window_layers, layer_types): 0 if every
/// layer sees everything, the window if every layer has it. Throws bad_input where layers differ.
int64_t read_qwen_window(const JsonObject& config, int64_t layers);
void write_qwen_window(const ModelSpec& model, Json& config);

// Mixtures of experts (expert_json.cpp).

/// The losses of the router, per sequence: aux_loss_alpha (with seq_aux, as DeepSeek-V2 writes it) and
/// router_z_loss_coef. Throws bad_input for losses whose value depends on how a batch is cut (output_router_logits,
/// seq_aux = false) and for router noise.
void read_router_losses(const JsonObject& config, ExpertSpec& moe);
void write_router_losses(const ExpertSpec& moe, Json& config);
/// Throws bad_input unless a token can choose its experts, naming `experts_key` and `chosen_key`.
void check_experts(const JsonObject& config, const ExpertSpec& moe, const std::string& experts_key,
                   const std::string& chosen_key);

// DeepSeek-V2 and V3 (deepseek_json.cpp).

/// What differs between the two in sizes that a config leaves out.
struct DeepseekDefaults {
  DecoderDefaults decoder;
  int64_t experts = 0, experts_per_token = 0, expert_ffn = 0, shared_experts = 0, first_dense_layers = 0;
};
/// Everything but how tokens choose experts.
ModelSpec read_deepseek(const JsonObject& config, const DeepseekDefaults& defaults);
void write_deepseek(const ModelSpec& model, Json& config);
/// n_group and topk_group; throws bad_input unless the groups divide the experts and hold enough of them.
void read_groups(const JsonObject& config, int64_t default_groups, int64_t default_used, ExpertSpec& moe);
const WeightNames& deepseek_weight_names();

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
inline constexpr int64_t kMostExperts = int64_t{1} << 14;
inline constexpr int64_t kMostExpertWidth = int64_t{1} << 25;  // experts * expert_ffn
inline constexpr int64_t kMostVocabulary = int64_t{1} << 24;
inline constexpr int64_t kMostPositions = int64_t{1} << 28;

}  // namespace foresail
