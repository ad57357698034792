// What the logical tensors of a family are called in Hugging Face checkpoints.
#pragma once

#include <string>

#include "models/model_spec.h"

namespace foresail {

/// Of latent attention. With `query_rank` = 0 queries are one product, WeightNames::query.
struct LatentNames {
  std::string query_down, query_norm, query_up;
  std::string kv_down;  ///< kv_rank rows of the latent, then rope_dim rows of the rotated key that all heads share
  std::string kv_norm, kv_up;
};

/// Of a mixture of experts.
struct ExpertNames {
  std::string router;
  std::string correction_bias;  ///< a whole tensor name: nothing follows
  std::string gate, up, down;   ///< "{e}" stands for the number of the expert (expert_name)
  std::string shared_gate, shared_up, shared_down;
};

/// Module names; ".weight" and ".bias" follow. "{}" stands for the layer number. A name is empty where the family has no
/// such module.
struct WeightNames {
  std::string token_embedding, position_embedding;  ///< position_embedding is empty for rotary positions
  std::string norm_1, norm_2, final_norm;
  std::string query, key, value;  ///< three equal names: one tensor holds q, k and v, stacked in that order
  std::string query_norm, key_norm;
  std::string attention_out;
  std::string gate, up, down;  ///< gate is empty where the activation is not gated
  std::string head;
  bool transposed_in_file = false;  ///< matrices of the block are stored [in, out]
  LatentNames latent;
  ExpertNames experts;
};

/// The names of `model.family`. Throws (ensure) for a family that does not exist.
const WeightNames& weight_names(const ModelSpec& model);

/// `name` with its "{e}" replaced by the number of an expert; "{}" stays for the layer.
std::string expert_name(const std::string& name, int64_t expert);

/// model.embed_tokens, model.layers.{}.self_attn.q_proj, ...: Llama and all who took its names.
const WeightNames& llama_weight_names();

}  // namespace foresail
