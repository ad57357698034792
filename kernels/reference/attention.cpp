// Causal attention that stores no scores between forward and backward: p is rebuilt from the log-sum-exp, as in
// FlashAttention-2 (Dao 2023). Here row by row, without tiles.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/dropout_mask.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/reference.h"

namespace foresail::reference {
namespace {

/// p_ij = softmax_j(scale q_i k_j); o_i = sum_j m_ij p_ij v_j, where m_ij is the dropout factor (0 or 1 / (1 - p));
/// lse_i = log sum_j exp(scale q_i k_j), before dropout.
void attention(const Run& run) {
  const OpAttributes& a = run.attributes();
  const HeadLayout at(a);
  const DropoutMask mask = dropout_mask(a, run.context());
  const double* qkv = run.in(0);
  double *o = run.out(0), *lse = run.out(1), *scores = run.workspace();
  const int64_t sequences = run.out_dim(1, 0);
  for (int64_t b = 0; b < sequences; ++b) {
    for (int64_t h = 0; h < a.heads; ++h) {
      for (int64_t i = 0; i < a.sequence_length; ++i) {
        const int64_t first = first_key(a, i);
        double largest = -std::numeric_limits<double>::infinity(), sum = 0;
        for (int64_t j = first; j <= i; ++j) {
          scores[j] = a.scale * dot(qkv + at.q(b, h, i), qkv + at.k(b, h, j), a.head_dim);
          largest = std::max(largest, scores[j]);
        }
        for (int64_t j = first; j <= i; ++j) sum += std::exp(scores[j] - largest);
        const double log_sum = largest + std::log(sum);
        lse[(b * a.heads + h) * a.sequence_length + i] = log_sum;
        double* o_row = o + at.o(b, h, i);
        std::fill_n(o_row, at.value_dim, 0.0);
        const uint64_t position =
            dropout_score_position(run.context(), a.heads_cut, b, h, a.heads, i, a.sequence_length);
        for (int64_t j = first; j <= i; ++j) {
          const double p = std::exp(scores[j] - log_sum);
          add_scaled(p * mask.factor(position + j), qkv + at.v(b, h, j), at.value_dim, o_row);
        }
      }
    }
  }
}

/// With m the dropout factors: dv_j += m_ij p_ij do_i; dp_ij = m_ij (do_i . v_j); ds_ij = p_ij (dp_ij - do_i . o_i);
/// dq_i += scale ds_ij k_j; dk_j += scale ds_ij q_i. dqkv is set, not added to.
void attention_backward(const Run& run) {
  const OpAttributes& a = run.attributes();
  const HeadLayout at(a);
  const DropoutMask mask = dropout_mask(a, run.context());
  const double *d_o = run.in(0), *qkv = run.in(1), *o = run.in(2), *lse = run.in(3);
  double* dqkv = run.out(0);
  std::fill_n(dqkv, run.out_dim(0, 0) * run.out_dim(0, 1), 0.0);
  const int64_t sequences = run.in_dim(3, 0), n = a.head_dim, w = at.value_dim;
  for (int64_t b = 0; b < sequences; ++b) {
    for (int64_t h = 0; h < a.heads; ++h) {
      for (int64_t i = 0; i < a.sequence_length; ++i) {
        const double* do_row = d_o + at.o(b, h, i);
        const double* q = qkv + at.q(b, h, i);
        const double delta = dot(do_row, o + at.o(b, h, i), w);
        const double log_sum = lse[(b * a.heads + h) * a.sequence_length + i];
        const uint64_t position =
            dropout_score_position(run.context(), a.heads_cut, b, h, a.heads, i, a.sequence_length);
        for (int64_t j = first_key(a, i); j <= i; ++j) {
          const double* k = qkv + at.k(b, h, j);
          const double p = std::exp(a.scale * dot(q, k, n) - log_sum);
          const double m = mask.factor(position + j);
          const double ds = p * (m * dot(do_row, qkv + at.v(b, h, j), w) - delta);
          add_scaled(m * p, do_row, w, dqkv + at.v(b, h, j));
          add_scaled(a.scale * ds, k, n, dqkv + at.q(b, h, i));
          add_scaled(a.scale * ds, q, n, dqkv + at.k(b, h, j));
        }
      }
    }
  }
}

void check(const Run& run) {
  const OpAttributes& a = run.attributes();
  require(run, a.heads % a.kv_heads == 0, "the heads are not a multiple of the KV heads");
  require(run, a.window >= 0, "the window is negative");
  require(run, a.probability >= 0 && a.probability < 1, "the dropout probability is not in [0, 1)");
  require(run, a.context_parallel == 1, "it needs whole sequences; with cut ones use ring_attention or an all-to-all");
}

constexpr Entry kKernels[] = {
    {OpKind::attention, "[B*S,QKV] -> [B*S,AW] [B,A,S]", attention, check, 1},
    {OpKind::attention_backward, "[B*S,AW] [B*S,QKV] [B*S,AW] [B,A,S] -> [B*S,QKV]", attention_backward, check},
};

}  // namespace

std::span<const Entry> attention_kernels() { return kKernels; }

}  // namespace foresail::reference
