// What `foresail model` shows: the weights of each kind of layer, with their parameters and FLOPs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model_spec.h"

namespace foresail {

/// One weight of one kind of layer, or the attention of a block (no weight, no parameters).
struct LayerRow {
  std::string layer;                   ///< "embedding", "block", "expert_block", "head"
  int64_t layers = 1;                  ///< how many layers of this kind the model has
  std::string weight;                  ///< "qkv", "norm_1"; "(attention)" for scores and context
  std::vector<int64_t> shape;          ///< [out, in] or [n]; [experts, out, in]
  int64_t parameters = 0;              ///< per layer; 0 for the second holder of a tied weight
  int64_t active_parameters = 0;       ///< those of them that a token meets: of experts its own only
  int64_t matrix_parameters = 0;       ///< active ones where it is an operand of a matrix product (tied or not)
  double forward_flops_per_token = 0;  ///< per layer: matrix products and attention; norms and the like count nothing
  std::string tied_to;
};

/// Rows layer by layer; a block's attention stands after its weights. Three times the sum of layers x
/// forward_flops_per_token is training_flops_per_token. Throws bad_input if the model cannot run at this length.
std::vector<LayerRow> layer_table(const ModelSpec& model, int64_t sequence_length);

/// The table and totals as text, for people.
std::string describe_model(const ModelSpec& model, int64_t sequence_length);

/// One JSON document: name, family, parameters, active_parameters, layers, vocabulary, training_flops_per_token,
/// layer_table [{layer, layers, weight, shape, parameters, forward_flops_per_token}].
std::string describe_model_json(const ModelSpec& model, int64_t sequence_length);

}  // namespace foresail
