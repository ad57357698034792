#include "ops/op_table.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "ops/rules.h"

namespace foresail {
namespace {

using enum OpKind;
using namespace rules;  // NOLINT(google-build-using-namespace): the rows below are nothing but names of this room

// clang-format off
std::vector<OpInfo> rows() {
  const auto gemm = OpClass::matrix_product;
  const auto flash = OpClass::attention;
  const auto unfused = OpClass::unfused_attention;
  const auto norm = OpClass::norm;
  const auto element = OpClass::element_wise;
  const auto table = OpClass::embedding;
  const auto loss = OpClass::loss;
  const auto routing = OpClass::routing;
  const auto optimizer = OpClass::optimizer;
  const auto per_element = flops_per_element;
  const auto product = flops_of_product;
  const auto operands = bytes_of_operands;
  // kind, name, class, accumulating outputs, in place {output, input}, inference, FLOPs, bytes, derivative
  return {
      {embedding, "embedding", table, 0, {}, infer_embedding, per_element, bytes_of_embedding, derive_embedding},
      {embedding_backward, "embedding_backward", table, 1, {}, {}, per_element, bytes_of_embedding_backward, {}},
      {position_embedding, "position_embedding", table, 0, {{0, 0}}, infer_same, per_element, operands,
       derive_position_embedding},
      {position_embedding_backward, "position_embedding_backward", table, 1, {}, {}, per_element, operands, {}},
      {rms_norm, "rms_norm", norm, 0, {}, infer_rms_norm, per_element, operands, derive_rms_norm},
      {rms_norm_backward, "rms_norm_backward", norm, 2, {{0, 4}, {0, 0}}, {}, per_element, operands, {}},
      {layer_norm, "layer_norm", norm, 0, {}, infer_layer_norm, per_element, operands, derive_layer_norm},
      {layer_norm_backward, "layer_norm_backward", norm, 6, {{0, 5}, {0, 0}}, {}, per_element, operands, {}},
      {add_rms_norm, "add_rms_norm", norm, 0, {{0, 0}, {0, 1}}, infer_add_rms_norm, per_element, operands,
       derive_add_rms_norm},
      {add_layer_norm, "add_layer_norm", norm, 0, {{0, 0}, {0, 1}}, infer_add_layer_norm, per_element, operands,
       derive_add_layer_norm},
      {qk_norm, "qk_norm", norm, 0, {{0, 0}}, infer_qk_norm, per_element, operands, derive_qk_norm},
      {qk_norm_backward, "qk_norm_backward", norm, 6, {{0, 0}}, {}, per_element, operands, {}},
      {linear, "linear", gemm, 0, {}, infer_linear, product, operands, derive_linear},
      {linear_backward_input, "linear_backward_input", gemm, 0, {}, {}, product, operands, {}},
      {linear_backward_weight, "linear_backward_weight", gemm, 1, {}, {}, product, operands, {}},
      {bias_add, "bias_add", element, 0, {{0, 0}}, infer_same, per_element, operands, derive_bias_add},
      {bias_backward, "bias_backward", element, 1, {}, {}, per_element, operands, {}},
      {rope_table, "rope_table", element, 0, {}, {}, per_element, operands, {}},
      {rope, "rope", element, 0, {{0, 0}}, infer_same, per_element, operands, derive_rope},
      {rope_backward, "rope_backward", element, 0, {{0, 0}}, {}, per_element, operands, {}},
      {attention, "attention", flash, 0, {}, infer_attention, flops_of_attention, operands, derive_attention},
      {attention_backward, "attention_backward", flash, 0, {}, {}, flops_of_attention_backward, operands, {}},
      {attention_scores, "attention_scores", unfused, 0, {}, infer_attention_scores, flops_of_score_product, operands,
       derive_attention_scores},
      {attention_softmax, "attention_softmax", unfused, 0, {{0, 0}}, infer_same, per_element, operands,
       derive_attention_softmax},
      {attention_context, "attention_context", unfused, 0, {}, infer_attention_context, flops_of_score_product,
       operands, derive_attention_context},
      {attention_scores_backward, "attention_scores_backward", unfused, 1, {}, {}, flops_of_two_score_products,
       operands, {}},
      {attention_softmax_backward, "attention_softmax_backward", unfused, 0, {{0, 0}}, {}, per_element, operands, {}},
      {attention_context_backward, "attention_context_backward", unfused, 0, {}, {}, flops_of_two_score_products,
       operands, {}},
      {split_qkv, "split_qkv", element, 0, {}, infer_split_qkv, per_element, operands, derive_split_qkv},
      {join_qkv, "join_qkv", element, 0, {}, infer_join_qkv, per_element, operands, derive_join_qkv},
      {latent_join, "latent_join", element, 0, {}, infer_latent_join, per_element, operands, derive_latent_join},
      {latent_join_backward, "latent_join_backward", element, 0, {}, {}, per_element, operands, {}},
      // program/ puts the steps of a ring where attention and its derivative stood.
      {ring_attention, "ring_attention", flash, 0, {{0, 2}, {1, 3}}, infer_ring_attention, flops_of_ring_step, operands,
       {}},
      {ring_attention_backward, "ring_attention_backward", flash, 0, {{0, 5}, {1, 6}}, {}, flops_of_ring_step_backward,
       operands, {}},
      {heads_split, "heads_split", element, 0, {}, infer_heads_split, per_element, operands, derive_heads_split},
      {heads_merge, "heads_merge", element, 0, {}, infer_heads_merge, per_element, operands, derive_heads_merge},
      {rows_merge, "rows_merge", element, 0, {}, infer_rows_merge, per_element, operands, derive_rows_merge},
      {rows_split, "rows_split", element, 0, {}, infer_rows_split, per_element, operands, derive_rows_split},
      {moe_route, "moe_route", routing, 0, {}, infer_moe_route, per_element, operands, derive_moe_route},
      {moe_route_backward, "moe_route_backward", routing, 0, {}, {}, per_element, operands, {}},
      {moe_statistics, "moe_statistics", routing, 0, {}, infer_moe_statistics, per_element, operands, {}},
      {moe_balance_loss, "moe_balance_loss", routing, 1, {}, infer_loss, per_element, operands, derive_moe_balance_loss},
      {moe_balance_backward, "moe_balance_backward", routing, 0, {}, {}, per_element, operands, {}},
      {moe_dispatch, "moe_dispatch", routing, 8, {}, infer_moe_dispatch, per_element, bytes_of_routed_rows,
       derive_moe_dispatch},
      {moe_dispatch_backward, "moe_dispatch_backward", routing, 0, {}, {}, flops_of_combine, bytes_of_routed_rows, {}},
      {expert_linear, "expert_linear", gemm, 0, {}, infer_expert_linear, flops_of_expert_product,
       bytes_of_expert_product, derive_expert_linear},
      {expert_linear_backward_input, "expert_linear_backward_input", gemm, 0, {}, {}, flops_of_expert_product,
       bytes_of_expert_product, {}},
      {expert_linear_backward_weight, "expert_linear_backward_weight", gemm, 1, {}, {}, flops_of_expert_product,
       bytes_of_expert_product, {}},
      {moe_combine, "moe_combine", routing, 0, {}, infer_moe_combine, flops_of_combine, bytes_of_routed_rows,
       derive_moe_combine},
      {moe_combine_backward, "moe_combine_backward", routing, 0, {}, {}, flops_of_combine, bytes_of_routed_rows, {}},
      {gelu, "gelu", element, 0, {{0, 0}}, infer_same, per_element, operands, derive_gelu},
      {gelu_backward, "gelu_backward", element, 0, {{0, 0}, {0, 1}}, {}, per_element, operands, {}},
      {bias_gelu, "bias_gelu", element, 0, {{0, 0}}, infer_same, per_element, operands, derive_bias_gelu},
      {bias_gelu_backward, "bias_gelu_backward", element, 0, {{0, 0}, {0, 1}}, {}, per_element, operands, {}},
      {swiglu, "swiglu", element, 0, {}, infer_swiglu, per_element, operands, derive_swiglu},
      {swiglu_backward, "swiglu_backward", element, 0, {{0, 1}}, {}, per_element, operands, {}},
      {add, "add", element, 0, {{0, 0}, {0, 1}}, infer_same, per_element, operands, derive_add},
      {copy, "copy", element, 0, {}, infer_same, per_element, operands, derive_copy},
      {cast, "cast", element, 0, {}, {}, per_element, operands, {}},
      {dropout, "dropout", element, 0, {{0, 0}}, infer_same, per_element, operands, derive_dropout},
      {cross_entropy_stats, "cross_entropy_stats", loss, 0, {}, infer_cross_entropy_stats, per_element, operands, {}},
      {cross_entropy_backward, "cross_entropy_backward", loss, 2, {{0, 0}}, {}, per_element, operands, {}},
      {cross_entropy_loss, "cross_entropy_loss", loss, 1, {}, infer_loss, per_element, operands, derive_loss},
      {cross_entropy, "cross_entropy", loss, 2, {{0, 0}}, {}, per_element, operands, {}},
      {fill_zero, "fill_zero", optimizer, 0, {}, {}, per_element, operands, {}},
      {squared_norm, "squared_norm", optimizer, 1, {}, {}, per_element, operands, {}},
      {clip_scale, "clip_scale", optimizer, 1, {}, {}, per_element, operands, {}},
      {adamw, "adamw", optimizer, 15, {}, {}, per_element, operands, {}},
  };
}
// clang-format on

const std::array<OpInfo, kOpKindCount>& table() {
  static const auto by_kind = [] {
    std::array<OpInfo, kOpKindCount> result;
    std::array<bool, kOpKindCount> present{};
    for (OpInfo& row : rows()) {
      const auto index = static_cast<size_t>(row.kind);
      present.at(index) = true;
      result.at(index) = std::move(row);
    }
    ensure(std::all_of(present.begin(), present.end(), [](bool row) { return row; }), "every kind has a row");
    return result;
  }();
  return by_kind;
}

}  // namespace

const OpInfo& info(OpKind kind) { return table().at(static_cast<size_t>(kind)); }

double flops_of(const OpInstance& op) { return info(op.kind).flops(op); }

double bytes_of(const OpInstance& op) { return info(op.kind).bytes(op); }

}  // namespace foresail
