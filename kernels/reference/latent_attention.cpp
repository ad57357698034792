// Multi-head latent attention (DeepSeek-V2, section 2.1): the rows that attention reads, from what the products of the
// latents give. A head of D columns has N = D - R that know no position and R that are rotated, pairs of neighbours
// (2i, 2i + 1) together. All heads share the rotated part of the key.
#include <algorithm>

#include "kernels/reference/reference.h"
#include "kernels/row_map.h"

namespace foresail::reference {
namespace {

/// Where heads lie in q [T, A(N+R)], kv [T, A(N+W)], k_rope [T, R] and the packed rows.
struct Latent {
  int64_t heads, nope, rope, value, head_dim, packed_row;

  explicit Latent(const OpAttributes& a)
      : heads(a.heads),
        nope(a.head_dim - a.rope_dim),
        rope(a.rope_dim),
        value(a.value_width()),
        head_dim(a.head_dim),
        packed_row(a.qkv_columns()) {}

  int64_t q(int64_t row, int64_t head) const { return (row * heads + head) * head_dim; }
  int64_t kv(int64_t row, int64_t head) const { return (row * heads + head) * (nope + value); }
  int64_t packed_q(int64_t row, int64_t head) const { return row * packed_row + head * head_dim; }
  int64_t packed_k(int64_t row, int64_t head) const { return packed_q(row, heads + head); }
  int64_t packed_v(int64_t row, int64_t head) const { return packed_q(row, 2 * heads) + head * value; }
};

/// The table may be f64 or f32, as for rope.
double table_entry(const Run& run, int operand, int64_t at) {
  const void* table = run.arguments.inputs[static_cast<size_t>(operand)];
  const bool single = run.op.inputs[static_cast<size_t>(operand)].dtype == DType::f32;
  return single ? static_cast<const float*>(table)[at] : static_cast<const double*>(table)[at];
}

/// y = x rotated by +angle of the position (direction 1) or back (-1); y may be x.
void rotate_pairs(const Run& run, int table, int64_t position, double direction, const double* x, double* y) {
  const int64_t pairs = run.attributes().rope_dim / 2;
  for (int64_t i = 0; i < pairs; ++i) {
    const int64_t at = (position * pairs + i) * 2;
    const double c = table_entry(run, table, at), s = direction * table_entry(run, table, at + 1);
    const double even = x[2 * i], odd = x[2 * i + 1];
    y[2 * i] = even * c - odd * s;
    y[2 * i + 1] = odd * c + even * s;
  }
}

void latent_join(const Run& run) {
  const Latent at(run.attributes());
  const double *q = run.in(0), *kv = run.in(1), *k_rope = run.in(2);
  double* qkv = run.out(0);
  const int64_t rows = run.in_dim(0, 0);
  const RowMap map(run.attributes(), run.context(), rows);
  for (int64_t t = 0; t < rows; ++t) {
    const int64_t position = map.position(t);
    for (int64_t h = 0; h < at.heads; ++h) {
      std::copy_n(q + at.q(t, h), at.nope, qkv + at.packed_q(t, h));
      rotate_pairs(run, 3, position, 1, q + at.q(t, h) + at.nope, qkv + at.packed_q(t, h) + at.nope);
      std::copy_n(kv + at.kv(t, h), at.nope, qkv + at.packed_k(t, h));
      rotate_pairs(run, 3, position, 1, k_rope + t * at.rope, qkv + at.packed_k(t, h) + at.nope);
      std::copy_n(kv + at.kv(t, h) + at.nope, at.value, qkv + at.packed_v(t, h));
    }
  }
}

void latent_join_backward(const Run& run) {
  const Latent at(run.attributes());
  const double* dqkv = run.in(0);
  double *dq = run.out(0), *dkv = run.out(1), *dk_rope = run.out(2);
  const int64_t rows = run.in_dim(0, 0);
  const RowMap map(run.attributes(), run.context(), rows);
  for (int64_t t = 0; t < rows; ++t) {
    const int64_t position = map.position(t);
    double* shared = dk_rope + t * at.rope;
    std::fill_n(shared, at.rope, 0.0);
    for (int64_t h = 0; h < at.heads; ++h) {
      std::copy_n(dqkv + at.packed_q(t, h), at.nope, dq + at.q(t, h));
      rotate_pairs(run, 1, position, -1, dqkv + at.packed_q(t, h) + at.nope, dq + at.q(t, h) + at.nope);
      std::copy_n(dqkv + at.packed_k(t, h), at.nope, dkv + at.kv(t, h));
      std::copy_n(dqkv + at.packed_v(t, h), at.value, dkv + at.kv(t, h) + at.nope);
      for (int64_t i = 0; i < at.rope; ++i) shared[i] += dqkv[at.packed_k(t, h) + at.nope + i];
    }
    rotate_pairs(run, 1, position, -1, shared, shared);
  }
}

void check(const Run& run) {
  const OpAttributes& a = run.attributes();
  require(run, a.heads == a.kv_heads, "the heads have no keys of their own");
  require(run, a.rope_dim > 0 && a.rope_dim % 2 == 0 && a.rope_dim <= a.head_dim,
          "the rotated part is not an even part of a head");
  require_row_map(run, run.in_dim(0, 0));
}

constexpr Entry kKernels[] = {
    {OpKind::latent_join, "[T,AD] [T,LKV] [T,RO] table[S*C,RO2,2] -> [T,QKV]", latent_join, check},
    {OpKind::latent_join_backward, "[T,QKV] table[S*C,RO2,2] -> [T,AD] [T,LKV] [T,RO]", latent_join_backward, check},
};

}  // namespace

std::span<const Entry> latent_attention_kernels() { return kKernels; }

}  // namespace foresail::reference
