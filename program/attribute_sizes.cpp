#include "program/attribute_sizes.h"

namespace foresail {
namespace {

/// [T, width] with whole sequences of this rank's length.
bool is_rows(const OpAttributes& a, const TensorType& type, int64_t width) {
  return a.sequence_length > 0 && a.heads > 0 && a.head_dim > 0 && type.shape.size() == 2 &&
         type.shape[0] % a.sequence_length == 0 && type.shape[1] == width;
}

bool is_packed(const OpAttributes& a, const TensorType& type) { return is_rows(a, type, a.qkv_columns()); }

bool is_attended(const OpAttributes& a, const TensorType& type) { return is_rows(a, type, a.o_columns()); }

/// The operands of latent attention that make packed rows.
bool is_latent(const OpAttributes& a, const TensorType& q, const TensorType& kv, const TensorType& k_rope) {
  const int64_t nope = a.head_dim - a.rope_dim;
  return a.heads == a.kv_heads && a.rope_dim > 0 && nope >= 0 && is_rows(a, q, a.q_columns()) &&
         is_rows(a, kv, a.heads * (nope + a.value_width())) && is_rows(a, k_rope, a.rope_dim);
}

/// [T/S, A, S] or [T/S, A, S, S].
bool is_by_head(const OpAttributes& a, const TensorType& type) {
  return type.shape.size() >= 3 && type.shape[1] == a.heads && type.shape[2] == a.sequence_length;
}

bool is_cut_in(const OpAttributes& a, const TensorType& parts) {
  return a.context_parallel >= 1 && parts.shape.size() == 3 && parts.shape[0] == a.context_parallel;
}

/// x[T, W] with a share of each head's columns for every context rank.
bool is_headed(const OpAttributes& a, const TensorType& rows) {
  return a.heads > 0 && a.head_dim > 0 && rows.shape.size() == 2 && rows.shape[1] == a.qkv_columns() &&
         a.heads % a.context_parallel == 0 && a.kv_heads % a.context_parallel == 0;
}

/// A router gives each row K different experts, all from its best groups.
bool is_routing(const OpAttributes& a, const TensorType& logits, const TensorType& index) {
  return a.experts > 0 && logits.shape[1] == a.experts && a.experts_per_token > 0 && a.expert_groups > 0 &&
         index.shape[1] == a.experts_per_token && a.experts % a.expert_groups == 0 && a.groups_per_token > 0 &&
         a.groups_per_token <= a.expert_groups &&
         a.experts_per_token <= a.experts / a.expert_groups * a.groups_per_token;
}

/// stats[B,3,E] of this rank's share of the rows of B sequences.
bool is_by_sequence(const OpAttributes& a, const TensorType& logits, const TensorType& stats) {
  const int64_t rows = logits.shape[0], all_rows = stats.shape[0] * a.sequence_length;
  return a.sequence_length > 0 && stats.shape[0] == a.sequences && logits.shape[1] == a.experts && rows > 0 &&
         (a.rows_cut ? all_rows % rows == 0 : all_rows == rows);
}

/// Equal shares of the buffer for every rank, equal shares of the experts.
bool is_dispatched(const OpAttributes& a, const TensorType& rows, const TensorType& slot) {
  return a.expert_ranks > 0 && a.experts > 0 && a.experts % a.expert_ranks == 0 && rows.shape[0] == a.expert_rows &&
         a.expert_rows % a.expert_ranks == 0 && slot.shape[1] == a.experts_per_token;
}

/// Every source has a count for every expert and an equal share of the rows.
bool is_by_source(const TensorType& rows, const TensorType& weight, const TensorType& counts) {
  const int64_t experts = weight.shape[0];
  if (experts < 1 || counts.shape[0] < experts || counts.shape[0] % experts != 0) return false;
  return rows.shape[0] % (counts.shape[0] / experts) == 0;
}

}  // namespace

bool attributes_agree(const OpInstance& op) {
  const OpAttributes& a = op.attributes;
  const auto& in = op.inputs;
  const auto& out = op.outputs;
  switch (op.kind) {
    case OpKind::qk_norm:
    case OpKind::qk_norm_backward:
    case OpKind::rope:
    case OpKind::rope_backward:
    case OpKind::split_qkv: return is_packed(a, in[0]);
    case OpKind::join_qkv: return is_packed(a, out[0]);
    case OpKind::latent_join: return is_packed(a, out[0]) && is_latent(a, in[0], in[1], in[2]);
    case OpKind::latent_join_backward: return is_packed(a, in[0]) && is_latent(a, out[0], out[1], out[2]);
    case OpKind::attention: return is_packed(a, in[0]) && is_attended(a, out[0]) && is_by_head(a, out[1]);
    case OpKind::attention_scores: return is_packed(a, in[0]) && is_by_head(a, out[0]);
    case OpKind::attention_context: return is_packed(a, in[1]) && is_attended(a, out[0]) && is_by_head(a, in[0]);
    case OpKind::attention_scores_backward: return is_packed(a, in[1]) && is_by_head(a, in[0]);
    case OpKind::attention_backward: return is_packed(a, in[1]) && is_attended(a, in[0]) && is_by_head(a, in[3]);
    case OpKind::attention_context_backward:
      return is_packed(a, in[2]) && is_attended(a, in[0]) && is_by_head(a, in[1]);
    case OpKind::ring_attention:
      return is_rows(a, in[0], a.q_columns()) && is_rows(a, in[1], a.kv_columns()) && is_attended(a, out[0]) &&
             is_by_head(a, out[1]);
    case OpKind::ring_attention_backward:
      return is_rows(a, in[1], a.q_columns()) && is_rows(a, in[2], a.kv_columns()) && is_attended(a, in[0]) &&
             is_by_head(a, in[4]);
    case OpKind::heads_split: return is_cut_in(a, out[0]) && is_headed(a, in[0]);
    case OpKind::heads_merge: return is_cut_in(a, in[0]) && is_headed(a, out[0]);
    case OpKind::rows_split: return is_cut_in(a, out[0]);
    case OpKind::rows_merge: return is_cut_in(a, in[0]);
    case OpKind::moe_route: return is_routing(a, in[0], out[0]);
    case OpKind::moe_route_backward: return is_routing(a, in[1], in[2]);
    case OpKind::moe_statistics: return is_routing(a, in[0], in[1]) && is_by_sequence(a, in[0], out[0]);
    case OpKind::moe_balance_loss:
    case OpKind::moe_balance_backward: return a.experts_per_token > 0 && is_by_sequence(a, in[0], in[2]);
    case OpKind::moe_dispatch: return is_dispatched(a, out[0], out[1]) && out[2].shape[0] == a.experts;
    case OpKind::moe_dispatch_backward:
    case OpKind::moe_combine: return is_dispatched(a, in[0], in[1]);
    case OpKind::moe_combine_backward: return is_dispatched(a, in[1], in[2]);
    case OpKind::expert_linear:
    case OpKind::expert_linear_backward_input: return is_by_source(in[0], in[1], in[2]);
    case OpKind::expert_linear_backward_weight: return is_by_source(in[0], out[0], in[2]);
    default: return true;
  }
}

}  // namespace foresail
