// Operators that only move elements: q, k and v apart and together, heads and rows to and from the parts of an
// all-to-all over the context ranks, copies and conversions.
#include <algorithm>

#include "kernels/reference/reference.h"
#include "kernels/row_map.h"

namespace foresail::reference {
namespace {

/// Calls move(qkv offset, q offset) for every element of q and so on for kv: the elements of a packed row in order.
template <typename Q, typename Kv>
void for_each_packed(const Run& run, int64_t rows, const Q& move_q, const Kv& move_kv) {
  const OpAttributes& a = run.attributes();
  const int64_t q = a.q_columns(), kv = a.kv_columns();
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t i = 0; i < q; ++i) move_q(t * (q + kv) + i, t * q + i);
    for (int64_t i = 0; i < kv; ++i) move_kv(t * (q + kv) + q + i, t * kv + i);
  }
}

void split_qkv(const Run& run) {
  const double* qkv = run.in(0);
  double *q = run.out(0), *kv = run.out(1);
  for_each_packed(
      run, run.in_dim(0, 0), [&](int64_t from, int64_t to) { q[to] = qkv[from]; },
      [&](int64_t from, int64_t to) { kv[to] = qkv[from]; });
}

void join_qkv(const Run& run) {
  const double *q = run.in(0), *kv = run.in(1);
  double* qkv = run.out(0);
  for_each_packed(
      run, run.in_dim(0, 0), [&](int64_t to, int64_t from) { qkv[to] = q[from]; },
      [&](int64_t to, int64_t from) { qkv[to] = kv[from]; });
}

/// Calls move(offset in x [T,W], offset in parts [C,T,W/C]) for every element. x has A query heads, G key heads and G
/// value heads; part c has the c-th share of each of the three.
template <typename Move>
void for_each_of_heads(const Run& run, int64_t rows, const Move& move) {
  const OpAttributes& a = run.attributes();
  const int64_t degree = a.context_parallel, width = a.qkv_columns();
  const int64_t keys = a.kv_heads * a.head_dim, values = a.kv_heads * a.value_width();
  const int64_t begins[] = {0, a.q_columns(), a.q_columns() + keys}, columns[] = {a.q_columns(), keys, values};
  for (int64_t c = 0; c < degree; ++c) {
    for (int64_t t = 0; t < rows; ++t) {
      int64_t part = (c * rows + t) * (width / degree);
      for (int kind = 0; kind < 3; ++kind) {
        const int64_t share = columns[kind] / degree;
        for (int64_t i = 0; i < share; ++i) move(t * width + begins[kind] + c * share + i, part++);
      }
    }
  }
}

void heads_split(const Run& run) {
  for_each_of_heads(run, run.in_dim(0, 0), [&](int64_t x, int64_t part) { run.out(0)[part] = run.in(0)[x]; });
}

void heads_merge(const Run& run) {
  for_each_of_heads(run, run.out_dim(0, 0), [&](int64_t x, int64_t part) { run.out(0)[x] = run.in(0)[part]; });
}

void check_heads(const Run& run, int64_t width) {
  const OpAttributes& a = run.attributes();
  require(run, a.heads >= 0 && a.kv_heads >= 0 && width == a.qkv_columns(), "the width is not that of the heads");
  require(run, a.heads % a.context_parallel == 0 && a.kv_heads % a.context_parallel == 0,
          "the context ranks do not divide the heads");
}

void check_split(const Run& run) { check_heads(run, run.in_dim(0, 1)); }
void check_merge(const Run& run) { check_heads(run, run.out_dim(0, 1)); }

/// Calls move(row of whole sequences, row of parts) for every row. Part c holds what context rank c holds of every
/// sequence.
template <typename Move>
void for_each_row(const Run& run, int64_t rows, const Move& move) {
  const OpAttributes& a = run.attributes();
  const int64_t length = a.sequence_length;
  for (int64_t c = 0; c < a.context_parallel; ++c) {
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t position = zigzag_position(c, a.context_parallel, length, t % length);
      move(t / length * whole_length(a) + position, c * rows + t);
    }
  }
}

void rows_merge(const Run& run) {
  const int64_t width = run.in_dim(0, 2);
  for_each_row(run, run.in_dim(0, 1), [&](int64_t whole, int64_t part) {
    std::copy_n(run.in(0) + part * width, width, run.out(0) + whole * width);
  });
}

void rows_split(const Run& run) {
  const int64_t width = run.out_dim(0, 2);
  for_each_row(run, run.out_dim(0, 1), [&](int64_t whole, int64_t part) {
    std::copy_n(run.in(0) + whole * width, width, run.out(0) + part * width);
  });
}

void check_rows(const Run& run, int64_t rows) {
  require(run, !run.attributes().rows_cut, "the rows are cut over the tensor ranks");
  require_row_map(run, rows);
}

void check_rows_merge(const Run& run) { check_rows(run, run.in_dim(0, 1)); }
void check_rows_split(const Run& run) { check_rows(run, run.out_dim(0, 1)); }

void copy(const Run& run) { std::copy_n(run.in(0), run.op.outputs[0].elements(), run.out(0)); }

template <typename From, typename To>
void convert(const Run& run) {
  const From* from = static_cast<const From*>(run.arguments.inputs[0]);
  To* to = static_cast<To*>(run.arguments.outputs[0]);
  for (int64_t i = 0; i < run.op.outputs[0].elements(); ++i) to[i] = static_cast<To>(from[i]);
}

void cast(const Run& run) {
  const bool from_single = run.op.inputs[0].dtype == DType::f32, to_single = run.op.outputs[0].dtype == DType::f32;
  if (from_single) return to_single ? convert<float, float>(run) : convert<float, double>(run);
  return to_single ? convert<double, float>(run) : convert<double, double>(run);
}

constexpr Entry kKernels[] = {
    {OpKind::split_qkv, "[T,QKV] -> [T,AD] [T,KV]", split_qkv},
    {OpKind::join_qkv, "[T,AD] [T,KV] -> [T,QKV]", join_qkv},
    {OpKind::heads_split, "[T,C*W] -> [C,T,W]", heads_split, check_split},
    {OpKind::heads_merge, "[C,T,W] -> [T,C*W]", heads_merge, check_merge},
    {OpKind::rows_merge, "[C,T,W] -> [C*T,W]", rows_merge, check_rows_merge},
    {OpKind::rows_split, "[C*T,W] -> [C,T,W]", rows_split, check_rows_split},
    {OpKind::copy, "[*] -> [*]", copy},
    {OpKind::cast, "real[*] -> real[*]", cast},
};

}  // namespace

std::span<const Entry> rearrange_kernels() { return kKernels; }

}  // namespace foresail::reference
