// GPT-2 (Radford et al. 2019), and GPT-3's dense attention at GPT-2's structure (Brown et al. 2020).
#include <fmt/format.h>

#include "models/family_json.h"

namespace foresail {
namespace {

constexpr int64_t kDefaultVocabulary = 50257, kDefaultPositions = 1024, kDefaultWidth = 768, kDefaultLayers = 12,
                  kDefaultHeads = 12;
constexpr double kDefaultDropout = 0.1;

void refuse_unsupported(const JsonObject& config) {
  const std::string activation = config.get_string("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh" && activation != "gelu_fast") {
    config.fail("activation_function", fmt::format("activation '{}' is not supported", activation),
                "use gelu_new (GELU by tanh)");
  }
  if (!config.get_bool("scale_attn_weights", true)) {
    config.fail("scale_attn_weights", "attention without the 1/sqrt(head_dim) scale is not supported",
                "set it to true");
  }
  for (const std::string key : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    if (config.get_bool(key, false)) config.fail(key, "is not supported", "set it to false");
  }
}

ModelSpec read(const JsonObject& config) {
  refuse_unsupported(config);
  ModelSpec model;
  model.vocabulary = read_size(config, {"vocab_size"}, kDefaultVocabulary, kMostVocabulary);
  model.hidden = read_size(config, {"n_embd", "hidden_size"}, kDefaultWidth, kMostHidden);
  model.layers = read_size(config, {"n_layer", "num_hidden_layers"}, kDefaultLayers, kMostLayers);
  model.heads = read_size(config, {"n_head", "num_attention_heads"}, kDefaultHeads, kMostHeads);
  model.max_positions =
      read_size(config, {"n_positions", "max_position_embeddings"}, kDefaultPositions, kMostPositions);
  model.ffn = read_size(config, {"n_inner"}, 4 * model.hidden, kMostFfn);
  if (model.hidden % model.heads != 0) {
    config.fail(config.has("hidden_size") && !config.has("n_embd") ? "hidden_size" : "n_embd",
                fmt::format("{} is not divisible by {} heads", model.hidden, model.heads), "change n_embd or n_head");
  }
  model.kv_heads = model.heads;
  model.head_dim = model.hidden / model.heads;
  model.norm = NormKind::layer_norm;
  model.norm_epsilon = config.get_number("layer_norm_epsilon", 1e-5, 1e-20, 1);
  model.activation = ActivationKind::gelu_tanh;
  model.positions = PositionKind::learned;
  model.qkv_bias = model.attention_out_bias = model.mlp_bias = true;
  model.tied_embeddings = config.get_bool("tie_word_embeddings", true);
  model.residual_dropout = read_probability(config, "resid_pdrop", kDefaultDropout);
  model.embedding_dropout = read_probability(config, "embd_pdrop", kDefaultDropout);
  model.attention_dropout = read_probability(config, "attn_pdrop", kDefaultDropout);
  model.init_standard_deviation = config.get_number("initializer_range", 0.02, 1e-12, 100);
  model.scale_residual_init = true;
  check_heads(config, model);
  return model;
}

void write(const ModelSpec& model, Json& config) {
  config["vocab_size"] = model.vocabulary;
  config["n_positions"] = model.max_positions;
  config["n_embd"] = model.hidden;
  config["n_layer"] = model.layers;
  config["n_head"] = model.heads;
  config["n_inner"] = model.ffn;
  config["activation_function"] = "gelu_new";
  config["layer_norm_epsilon"] = model.norm_epsilon;
  config["resid_pdrop"] = model.residual_dropout;
  config["embd_pdrop"] = model.embedding_dropout;
  config["attn_pdrop"] = model.attention_dropout;
  config["initializer_range"] = model.init_standard_deviation;
  config["tie_word_embeddings"] = model.tied_embeddings;
}

const WeightNames& names() {
  static const WeightNames kNames{
      .token_embedding = "transformer.wte",
      .position_embedding = "transformer.wpe",
      .norm_1 = "transformer.h.{}.ln_1",
      .norm_2 = "transformer.h.{}.ln_2",
      .final_norm = "transformer.ln_f",
      .query = "transformer.h.{}.attn.c_attn",
      .key = "transformer.h.{}.attn.c_attn",
      .value = "transformer.h.{}.attn.c_attn",
      .query_norm = "",
      .key_norm = "",
      .attention_out = "transformer.h.{}.attn.c_proj",
      .gate = "",
      .up = "transformer.h.{}.mlp.c_fc",
      .down = "transformer.h.{}.mlp.c_proj",
      .head = "lm_head",
      .transposed_in_file = true,
      .latent = {},
      .experts = {},
  };
  return kNames;
}

}  // namespace

const Family& gpt2_family() {
  static const Family kFamily{"gpt2", {"GPT2LMHeadModel", "GPT2Model"}, read, write, &names()};
  return kFamily;
}

}  // namespace foresail
