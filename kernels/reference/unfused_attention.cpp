// Attention in separate steps that store scores [B, A, S, S], as stacks before FlashAttention do.
//
// Where ops/op.h leaves a choice:
// - attention_softmax obeys `window` like `attention` does; masked entries of p and of dscores are 0.
// - Masked entries of scores and of dp are undefined: no kernel reads them. This device writes NaN there, so that a
//   reader shows.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/attention.h"
#include "kernels/reference/reference.h"

namespace foresail::reference {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

/// Calls body(sequence, head, query) for every row of scores.
template <typename Body>
void for_each_query(const OpAttributes& a, int64_t sequences, const Body& body) {
  for (int64_t b = 0; b < sequences; ++b) {
    for (int64_t h = 0; h < a.heads; ++h) {
      for (int64_t i = 0; i < a.sequence_length; ++i) body(b, h, i);
    }
  }
}

/// scores_ij = scale q_i k_j
void attention_scores(const Run& run) {
  const OpAttributes& a = run.attributes();
  const HeadLayout at(a);
  const double* qkv = run.in(0);
  for_each_query(a, run.out_dim(0, 0), [&](int64_t b, int64_t h, int64_t i) {
    double* scores = run.out(0) + at.score(b, h, i);
    for (int64_t j = 0; j <= i; ++j) {
      scores[j] = a.scale * dot(qkv + at.q(b, h, i), qkv + at.k(b, h, j), a.head_dim);
    }
    std::fill(scores + i + 1, scores + a.sequence_length, kUndefined);
  });
}

/// p may be the buffer of the scores.
void attention_softmax(const Run& run) {
  const int64_t length = run.out_dim(0, 3);
  for (int64_t row = 0; row < run.op.outputs[0].elements() / length; ++row) {
    const double* scores = run.in(0) + row * length;
    double* p = run.out(0) + row * length;
    const int64_t i = row % length, first = first_key(run.attributes(), i);
    const double largest = *std::max_element(scores + first, scores + i + 1);
    double sum = 0;
    for (int64_t j = first; j <= i; ++j) {
      p[j] = std::exp(scores[j] - largest);
      sum += p[j];
    }
    for (int64_t j = first; j <= i; ++j) p[j] /= sum;
    std::fill(p, p + first, 0.0);
    std::fill(p + i + 1, p + length, 0.0);
  }
}

/// o_i = sum_j p_ij v_j. p is what softmax and dropout left: 0 where masked.
void attention_context(const Run& run) {
  const OpAttributes& a = run.attributes();
  const HeadLayout at(a);
  const double* qkv = run.in(1);
  for_each_query(a, run.in_dim(0, 0), [&](int64_t b, int64_t h, int64_t i) {
    const double* p = run.in(0) + at.score(b, h, i);
    double* o = run.out(0) + at.o(b, h, i);
    std::fill_n(o, at.value_dim, 0.0);
    for (int64_t j = 0; j <= i; ++j) add_scaled(p[j], qkv + at.v(b, h, j), at.value_dim, o);
  });
}

/// dq_i += scale ds_ij k_j; dk_j += scale ds_ij q_i
void attention_scores_backward(const Run& run) {
  const OpAttributes& a = run.attributes();
  const HeadLayout at(a);
  const double* qkv = run.in(1);
  double* dqkv = run.out(0);
  for_each_query(a, run.in_dim(0, 0), [&](int64_t b, int64_t h, int64_t i) {
    const double* dscores = run.in(0) + at.score(b, h, i);
    for (int64_t j = 0; j <= i; ++j) {
      add_scaled(a.scale * dscores[j], qkv + at.k(b, h, j), a.head_dim, dqkv + at.q(b, h, i));
      add_scaled(a.scale * dscores[j], qkv + at.q(b, h, i), a.head_dim, dqkv + at.k(b, h, j));
    }
  });
}

/// ds_ij = p_ij (dp_ij - sum_j p_ij dp_ij). dscores may be the buffer of dp.
void attention_softmax_backward(const Run& run) {
  const int64_t length = run.out_dim(0, 3);
  for (int64_t row = 0; row < run.op.outputs[0].elements() / length; ++row) {
    const double *dp = run.in(0) + row * length, *p = run.in(1) + row * length;
    double* dscores = run.out(0) + row * length;
    const int64_t i = row % length;
    const double delta = dot(p, dp, i + 1);
    for (int64_t j = 0; j <= i; ++j) dscores[j] = p[j] * (dp[j] - delta);
    std::fill(dscores + i + 1, dscores + length, 0.0);
  }
}

/// dp_ij = do_i . v_j; dv_j += p_ij do_i after dqkv was set to 0.
void attention_context_backward(const Run& run) {
  const OpAttributes& a = run.attributes();
  const HeadLayout at(a);
  const double *d_o = run.in(0), *qkv = run.in(2);
  double* dqkv = run.out(1);
  std::fill_n(dqkv, run.out_dim(1, 0) * run.out_dim(1, 1), 0.0);
  for_each_query(a, run.in_dim(1, 0), [&](int64_t b, int64_t h, int64_t i) {
    const double* p = run.in(1) + at.score(b, h, i);
    const double* do_row = d_o + at.o(b, h, i);
    double* dp = run.out(0) + at.score(b, h, i);
    for (int64_t j = 0; j <= i; ++j) {
      dp[j] = dot(do_row, qkv + at.v(b, h, j), at.value_dim);
      add_scaled(p[j], do_row, at.value_dim, dqkv + at.v(b, h, j));
    }
    std::fill(dp + i + 1, dp + a.sequence_length, kUndefined);
  });
}

void check_square(const Run& run) { require(run, run.out_dim(0, 3) > 0, "the sequence is empty"); }

void check_softmax(const Run& run) {
  check_square(run);
  require(run, run.attributes().window >= 0, "the window is negative");
}

void check_heads(const Run& run) {
  require(run, run.attributes().heads % run.attributes().kv_heads == 0, "the heads are not a multiple of the KV heads");
  require(run, run.attributes().context_parallel == 1, "it needs whole sequences");
}

constexpr Entry kKernels[] = {
    {OpKind::attention_scores, "[B*S,QKV] -> [B,A,S,S]", attention_scores, check_heads},
    {OpKind::attention_softmax, "[B,N,L,L] -> [B,N,L,L]", attention_softmax, check_softmax},
    {OpKind::attention_context, "[B,A,S,S] [B*S,QKV] -> [B*S,AW]", attention_context, check_heads},
    {OpKind::attention_scores_backward, "[B,A,S,S] [B*S,QKV] -> [B*S,QKV]", attention_scores_backward, check_heads},
    {OpKind::attention_softmax_backward, "[B,N,L,L] [B,N,L,L] -> [B,N,L,L]", attention_softmax_backward, check_square},
    {OpKind::attention_context_backward, "[B*S,AW] [B,A,S,S] [B*S,QKV] -> [B,A,S,S] [B*S,QKV]",
     attention_context_backward, check_heads},
};

}  // namespace

std::span<const Entry> unfused_attention_kernels() { return kKernels; }

}  // namespace foresail::reference
