// The functions that the rows of the op table point to. Private to this room.
#pragma once

#include <vector>

#include "ops/op_table.h"

namespace foresail::rules {

using Inputs = std::vector<GraphTensor>;
using Inferred = std::vector<InferredTensor>;

// Shape inference (inference.cpp).
Inferred infer_embedding(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_same(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_rms_norm(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_layer_norm(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_add_rms_norm(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_add_layer_norm(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_qk_norm(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_linear(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_attention(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_attention_scores(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_attention_context(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_split_qkv(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_join_qkv(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_ring_attention(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_heads_split(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_heads_merge(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_rows_merge(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_rows_split(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_swiglu(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_cross_entropy_stats(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_loss(const Inputs&, const OpAttributes&, const Precision&);

// Of latent attention (latent_attention.cpp).
Inferred infer_latent_join(const Inputs&, const OpAttributes&, const Precision&);
void derive_latent_join(GradientBuilder&);

// Mixture of experts (mixture_of_experts.cpp).
Inferred infer_moe_route(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_moe_statistics(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_moe_dispatch(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_expert_linear(const Inputs&, const OpAttributes&, const Precision&);
Inferred infer_moe_combine(const Inputs&, const OpAttributes&, const Precision&);
void derive_moe_route(GradientBuilder&);
void derive_moe_balance_loss(GradientBuilder&);
void derive_moe_dispatch(GradientBuilder&);
void derive_expert_linear(GradientBuilder&);
void derive_moe_combine(GradientBuilder&);
double flops_of_expert_product(const OpInstance&);
double bytes_of_expert_product(const OpInstance&);
double flops_of_combine(const OpInstance&);
double bytes_of_routed_rows(const OpInstance&);

// Derivatives (derivatives.cpp).
void derive_embedding(GradientBuilder&);
void derive_position_embedding(GradientBuilder&);
void derive_rms_norm(GradientBuilder&);
void derive_layer_norm(GradientBuilder&);
void derive_add_rms_norm(GradientBuilder&);
void derive_add_layer_norm(GradientBuilder&);
void derive_qk_norm(GradientBuilder&);
void derive_linear(GradientBuilder&);
void derive_bias_add(GradientBuilder&);
void derive_rope(GradientBuilder&);
void derive_attention(GradientBuilder&);
void derive_attention_scores(GradientBuilder&);
void derive_attention_softmax(GradientBuilder&);
void derive_attention_context(GradientBuilder&);
void derive_split_qkv(GradientBuilder&);
void derive_join_qkv(GradientBuilder&);
void derive_heads_split(GradientBuilder&);
void derive_heads_merge(GradientBuilder&);
void derive_rows_merge(GradientBuilder&);
void derive_rows_split(GradientBuilder&);
void derive_gelu(GradientBuilder&);
void derive_bias_gelu(GradientBuilder&);
void derive_swiglu(GradientBuilder&);
void derive_add(GradientBuilder&);
void derive_copy(GradientBuilder&);
void derive_dropout(GradientBuilder&);
void derive_loss(GradientBuilder&);

// Costs (costs.cpp).
double flops_of_product(const OpInstance&);
double flops_of_attention(const OpInstance&);
double flops_of_attention_backward(const OpInstance&);
double flops_of_ring_step(const OpInstance&);
double flops_of_ring_step_backward(const OpInstance&);
double flops_of_score_product(const OpInstance&);
double flops_of_two_score_products(const OpInstance&);
double flops_per_element(const OpInstance&);
double bytes_of_operands(const OpInstance&);
double bytes_of_embedding(const OpInstance&);
double bytes_of_embedding_backward(const OpInstance&);

}  // namespace foresail::rules
