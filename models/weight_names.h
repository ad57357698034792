// What the logical tensors of a family are called in Hugging Face checkpoints.
#pragma once

#include <string>

#include "models/model_spec.h"

namespace foresail {

/// Module names; ".weight" and ".bias" follow. "{}" stands for the layer number.
struct WeightNames {
  std::string token_embedding, position_embedding;  ///< position_embedding is empty for rotary positions
  std::string norm_1, norm_2, final_norm;
  std::string query, key, value;  ///< three equal names: one tensor holds q, k and v, stacked in that order
  std::string query_norm, key_norm;
  std::string attention_out;
  std::string gate, up, down;  ///< gate is empty where the activation is not gated
  std::string head;
  bool transposed_in_file = false;  ///< matrices of the block are stored [in, out]
};

/// The names of `model.family`. Throws (ensure) for a family that does not exist.
const WeightNames& weight_names(const ModelSpec& model);

/// model.embed_tokens, model.layers.{}.self_attn.q_proj, ...: Llama, Mistral, Qwen2, Qwen3.
const WeightNames& llama_weight_names();

}  // namespace foresail
