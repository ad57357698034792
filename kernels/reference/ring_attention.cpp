// Ring attention (Liu, Zaharia & Abbeel 2023): queries stay, keys and values go round the context ranks, and every step
// joins what it attends to with what the steps before found, by their log-sum-exps. Here row by row, without tiles.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/dropout_mask.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/reference.h"
#include "kernels/row_map.h"

namespace foresail::reference {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();  // log-sum-exp of no key

/// One step: which ranks meet, and where rows and heads lie in q [T, A*D], o [T, A*W] and kv [T, G(D+W)].
struct Ring {
  const OpAttributes& a;
  int64_t rank, source;  ///< context ranks of the queries and of the keys

  Ring(const OpAttributes& attributes, const KernelContext& context)
      : a(attributes),
        rank(attributes.context_parallel > 1 ? context.context_rank : 0),
        source((rank - attributes.ring_step + attributes.context_parallel) % attributes.context_parallel) {}

  int64_t query_position(int64_t i) const { return zigzag_position(rank, a.context_parallel, a.sequence_length, i); }
  int64_t key_position(int64_t j) const { return zigzag_position(source, a.context_parallel, a.sequence_length, j); }
  bool sees(int64_t i, int64_t j) const {
    const int64_t query = query_position(i), key = key_position(j);
    return key <= query && key >= first_key(a, query);
  }
  int64_t q(int64_t sequence, int64_t head, int64_t i) const {
    return ((sequence * a.sequence_length + i) * a.heads + head) * a.head_dim;
  }
  int64_t o(int64_t sequence, int64_t head, int64_t i) const {
    return ((sequence * a.sequence_length + i) * a.heads + head) * a.value_width();
  }
  int64_t kv_head(int64_t head) const { return head / (a.heads / a.kv_heads); }
  int64_t kv_row(int64_t sequence, int64_t j) const { return (sequence * a.sequence_length + j) * a.kv_columns(); }
  int64_t k(int64_t sequence, int64_t head, int64_t j) const {
    return kv_row(sequence, j) + kv_head(head) * a.head_dim;
  }
  int64_t v(int64_t sequence, int64_t head, int64_t j) const {
    return kv_row(sequence, j) + a.kv_heads * a.head_dim + kv_head(head) * a.value_width();
  }
  int64_t lse(int64_t sequence, int64_t head, int64_t i) const {
    return (sequence * a.heads + head) * a.sequence_length + i;
  }
  /// Dropout position of key 0 of the whole sequence.
  uint64_t mask_row(const KernelContext& context, int64_t sequence, int64_t head, int64_t i) const {
    return dropout_score_position(context, a.heads_cut, sequence, head, a.heads, query_position(i), whole_length(a));
  }
};

/// Calls body(sequence, head, local query) for all queries.
template <typename Body>
void for_each_query(const OpAttributes& a, int64_t sequences, const Body& body) {
  for (int64_t b = 0; b < sequences; ++b) {
    for (int64_t h = 0; h < a.heads; ++h) {
      for (int64_t i = 0; i < a.sequence_length; ++i) body(b, h, i);
    }
  }
}

/// With L the log-sum-exp before and s_j the scores of this step: L' = log(exp L + sum_j exp s_j);
/// o' = exp(L - L') o + sum_j m_ij exp(s_j - L') v_j. A query that sees no key of this step keeps L and o.
void ring_attention(const Run& run) {
  const OpAttributes& a = run.attributes();
  const Ring at(a, run.context());
  const DropoutMask mask = dropout_mask(a, run.context());
  const double *q = run.in(0), *kv = run.in(1);
  const bool first_step = !run.has_input(2);
  double* scores = run.workspace();
  for_each_query(a, run.out_dim(1, 0), [&](int64_t b, int64_t h, int64_t i) {
    const double before = first_step ? kNothing : run.in(3)[at.lse(b, h, i)];
    double largest = before;
    for (int64_t j = 0; j < a.sequence_length; ++j) {
      scores[j] = at.sees(i, j) ? a.scale * dot(q + at.q(b, h, i), kv + at.k(b, h, j), a.head_dim) : kNothing;
      if (at.sees(i, j)) largest = std::max(largest, scores[j]);
    }
    double sum = 0, after = kNothing;
    if (largest != kNothing) {
      sum = std::exp(before - largest);
      for (int64_t j = 0; j < a.sequence_length; ++j) sum += std::exp(scores[j] - largest);
      after = largest + std::log(sum);
    }
    double* o = run.out(0) + at.o(b, h, i);
    for (int64_t d = 0; d < a.value_width(); ++d) {
      o[d] = before == kNothing ? 0 : std::exp(before - after) * run.in(2)[at.o(b, h, i) + d];
    }
    const uint64_t position = at.mask_row(run.context(), b, h, i);
    for (int64_t j = 0; j < a.sequence_length; ++j) {
      if (!at.sees(i, j)) continue;
      const double p = std::exp(scores[j] - after) * mask.factor(position + at.key_position(j));
      add_scaled(p, kv + at.v(b, h, j), a.value_width(), o);
    }
    run.out(1)[at.lse(b, h, i)] = after;
  });
}

/// Zero on the first step, then what the steps before have summed; `sums` may be that buffer.
void begin_sums(const Run& run, int output, int input) {
  double* sums = run.out(output);
  const int64_t n = run.op.outputs[static_cast<size_t>(output)].elements();
  if (!run.has_input(input)) {
    std::fill_n(sums, n, 0.0);
  } else if (sums != run.in(input)) {
    std::copy_n(run.in(input), n, sums);
  }
}

/// As attention_backward, over the keys of this step; o and lse are those after the last step.
void ring_attention_backward(const Run& run) {
  const OpAttributes& a = run.attributes();
  const Ring at(a, run.context());
  const DropoutMask mask = dropout_mask(a, run.context());
  const double *d_o = run.in(0), *q = run.in(1), *kv = run.in(2), *o = run.in(3), *lse = run.in(4);
  double *dq = run.out(0), *dkv = run.out(1);
  const int64_t n = a.head_dim, w = a.value_width();
  begin_sums(run, 0, 5);
  begin_sums(run, 1, 6);
  for_each_query(a, run.in_dim(4, 0), [&](int64_t b, int64_t h, int64_t i) {
    const int64_t query = at.q(b, h, i), attended = at.o(b, h, i);
    const double delta = dot(d_o + attended, o + attended, w);
    const uint64_t position = at.mask_row(run.context(), b, h, i);
    for (int64_t j = 0; j < a.sequence_length; ++j) {
      if (!at.sees(i, j)) continue;
      const double p = std::exp(a.scale * dot(q + query, kv + at.k(b, h, j), n) - lse[at.lse(b, h, i)]);
      const double m = mask.factor(position + at.key_position(j));
      const double ds = p * (m * dot(d_o + attended, kv + at.v(b, h, j), w) - delta);
      add_scaled(m * p, d_o + attended, w, dkv + at.v(b, h, j));
      add_scaled(a.scale * ds, kv + at.k(b, h, j), n, dq + query);
      add_scaled(a.scale * ds, q + query, n, dkv + at.k(b, h, j));
    }
  });
}

void check_ring(const Run& run, int first_step_inputs) {
  const OpAttributes& a = run.attributes();
  require(run, a.heads % a.kv_heads == 0, "the heads are not a multiple of the KV heads");
  require(run, a.window >= 0, "the window is negative");
  require(run, a.probability >= 0 && a.probability < 1, "the dropout probability is not in [0, 1)");
  require(run, a.ring_step >= 0 && a.ring_step < a.context_parallel, "the ring step is not below the degree");
  require(run, !a.rows_cut, "the rows are cut over the tensor ranks");
  require_row_map(run, run.in_dim(0, 0));
  const int inputs = static_cast<int>(run.op.inputs.size());
  require(run, inputs == first_step_inputs + (a.ring_step == 0 ? 0 : 2),
          "the first step alone begins without the results of steps before");
}

void check_forward(const Run& run) { check_ring(run, 2); }
void check_backward(const Run& run) { check_ring(run, 5); }

constexpr Entry kKernels[] = {
    {OpKind::ring_attention, "[B*S,AD] [B*S,KV] ?[B*S,AW] ?[B,A,S] -> [B*S,AW] [B,A,S]", ring_attention, check_forward,
     1},
    {OpKind::ring_attention_backward,
     "[B*S,AW] [B*S,AD] [B*S,KV] [B*S,AW] [B,A,S] ?[B*S,AD] ?[B*S,KV] -> [B*S,AD] [B*S,KV]", ring_attention_backward,
     check_backward},
};

}  // namespace

std::span<const Entry> ring_attention_kernels() { return kKernels; }

}  // namespace foresail::reference
