// Operators that only move elements: q, k and v apart and together, heads and rows to and from the parts of an
// all-to-all over the context ranks, copies and conversions. Threads own rows; runs of a row are copied whole.
#include <cstring>

#include "kernels/cpu/internal.h"
#include "kernels/cpu/operand_check.h"
#include "kernels/row_map.h"

namespace foresail {
namespace {

void copy_run(const float* from, int64_t count, float* to) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

/// body(row) for rows of `columns` elements.
template <typename Body>
void over_rows(int64_t rows, int64_t columns, const Body& body) {
  parallel_ranges(rows, row_grain(columns), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

void run_split_qkv(const OpInstance& op, const KernelArguments& a) {
  const int64_t q = columns_of(op.outputs[0]), kv = columns_of(op.outputs[1]);
  over_rows(rows_of(op.inputs[0]), q + kv, [&](int64_t t) {
    const float* row = input(a, 0) + t * (q + kv);
    copy_run(row, q, output(a, 0) + t * q);
    copy_run(row + q, kv, output(a, 1) + t * kv);
  });
}

void run_join_qkv(const OpInstance& op, const KernelArguments& a) {
  const int64_t q = columns_of(op.inputs[0]), kv = columns_of(op.inputs[1]);
  over_rows(rows_of(op.outputs[0]), q + kv, [&](int64_t t) {
    float* row = output(a, 0) + t * (q + kv);
    copy_run(input(a, 0) + t * q, q, row);
    copy_run(input(a, 1) + t * kv, kv, row + q);
  });
}

/// body(offset in x [T,W], offset in parts [C,T,W/C], elements) for every run of the heads: part c has the c-th share of
/// the A query heads, of the G key heads and of the G value heads of x.
template <typename Body>
void over_head_runs(const OpAttributes& a, int64_t rows, const Body& body) {
  const int64_t degree = a.context_parallel, width = a.qkv_columns();
  const int64_t q = a.heads / degree * a.head_dim, k = a.kv_heads / degree * a.head_dim;
  const int64_t v = a.kv_heads / degree * a.value_width();
  const int64_t k_begin = a.q_columns(), v_begin = (a.heads + a.kv_heads) * a.head_dim;
  over_rows(degree * rows, width / degree, [&](int64_t row) {
    const int64_t c = row / rows, x = row % rows * width, part = row * (width / degree);
    body(x + c * q, part, q);
    body(x + k_begin + c * k, part + q, k);
    body(x + v_begin + c * v, part + q + k, v);
  });
}

void run_heads_split(const OpInstance& op, const KernelArguments& a) {
  over_head_runs(op.attributes, rows_of(op.inputs[0]), [&](int64_t x, int64_t part, int64_t count) {
    copy_run(input(a, 0) + x, count, output(a, 0) + part);
  });
}

void run_heads_merge(const OpInstance& op, const KernelArguments& a) {
  over_head_runs(op.attributes, rows_of(op.outputs[0]), [&](int64_t x, int64_t part, int64_t count) {
    copy_run(input(a, 0) + part, count, output(a, 0) + x);
  });
}

void check_heads(const OpInstance& op, const TensorType& x, const TensorType& parts) {
  const OpAttributes& a = op.attributes;
  if (a.context_parallel < 1) refuse_operator(op, "attribute context_parallel is not positive");
  if (a.heads < 0 || a.kv_heads < 0 || columns_of(x) != a.qkv_columns())
    refuse_operator(op, "the width is not that of the heads");
  if (a.heads % a.context_parallel != 0 || a.kv_heads % a.context_parallel != 0)
    refuse_operator(op, "the context ranks do not divide the heads");
  if (columns_of(parts) * a.context_parallel != columns_of(x))
    refuse_operator(op, "a part does not have its share of the columns");
}

void check_heads_split(const OpInstance& op) { check_heads(op, op.inputs[0], op.outputs[0]); }
void check_heads_merge(const OpInstance& op) { check_heads(op, op.outputs[0], op.inputs[0]); }

/// body(row of whole sequences, row of parts): part c holds what context rank c holds of every sequence.
template <typename Body>
void over_part_rows(const OpAttributes& a, int64_t rows, int64_t columns, const Body& body) {
  const int64_t length = a.sequence_length, degree = a.context_parallel;
  over_rows(degree * rows, columns, [&](int64_t part) {
    const int64_t c = part / rows, t = part % rows;
    body(t / length * length * degree + zigzag_position(c, degree, length, t % length), part);
  });
}

void run_rows_merge(const OpInstance& op, const KernelArguments& a) {
  const int64_t columns = columns_of(op.outputs[0]);
  over_part_rows(op.attributes, op.inputs[0].shape[1], columns, [&](int64_t whole, int64_t part) {
    copy_run(input(a, 0) + part * columns, columns, output(a, 0) + whole * columns);
  });
}

void run_rows_split(const OpInstance& op, const KernelArguments& a) {
  const int64_t columns = columns_of(op.outputs[0]);
  over_part_rows(op.attributes, op.outputs[0].shape[1], columns, [&](int64_t whole, int64_t part) {
    copy_run(input(a, 0) + whole * columns, columns, output(a, 0) + part * columns);
  });
}

void check_rows(const OpInstance& op, const TensorType& whole, const TensorType& parts) {
  if (op.attributes.rows_cut) refuse_operator(op, "the rows are cut over the tensor ranks");
  check_row_map(op, parts.shape[1]);
  if (parts.shape[1] * op.attributes.context_parallel != rows_of(whole))
    refuse_operator(op, "a part does not have its share of the rows");
}

void check_rows_merge(const OpInstance& op) { check_rows(op, op.outputs[0], op.inputs[0]); }
void check_rows_split(const OpInstance& op) { check_rows(op, op.inputs[0], op.outputs[0]); }

void run_copy(const OpInstance& op, const KernelArguments& a) {
  parallel_ranges(op.outputs[0].elements(), kElementGrain, [&](int64_t begin, int64_t end, int) {
    copy_run(input(a, 0) + begin, end - begin, output(a, 0) + begin);
  });
}

template <typename From, typename To>
void convert(const OpInstance& op, const KernelArguments& a) {
  parallel_ranges(op.outputs[0].elements(), kElementGrain, [&](int64_t begin, int64_t end, int) {
    const From* from = input<From>(a, 0);
    To* to = output<To>(a, 0);
    for (int64_t i = begin; i < end; ++i) to[i] = static_cast<To>(from[i]);
  });
}

void run_cast(const OpInstance& op, const KernelArguments& a) {
  if (op.outputs[0].dtype == op.inputs[0].dtype) return run_copy(op, a);  // 16-bit storage was widened already
  if (op.outputs[0].dtype == DType::f64) return convert<float, double>(op, a);
  return convert<double, float>(op, a);
}

void check_cast(const OpInstance& op) {
  const DType from = op.inputs[0].dtype, to = op.outputs[0].dtype;
  const bool known = (from == DType::f32 && to == DType::f32) || (from == DType::f32 && to == DType::f64) ||
                     (from == DType::f64 && to == DType::f32);
  if (!known) {
    refuse_operator(op, "it has no conversion from a tensor in " + std::string(name_of(from)) + " to one in " +
                            std::string(name_of(to)));
  }
}

}  // namespace

std::span<const CpuOp> rearrange_ops() {
  static constexpr CpuOp kOps[] = {
      {OpKind::split_qkv, "qkv[T,QKV] -> q[T,AD] kv[T,KV]", run_split_qkv},
      {OpKind::join_qkv, "q[T,AD] kv[T,KV] -> qkv[T,QKV]", run_join_qkv},
      {.kind = OpKind::heads_split,
       .operands = "x[T,W] -> parts[C,T,V]",
       .run = run_heads_split,
       .check = check_heads_split},
      {.kind = OpKind::heads_merge,
       .operands = "parts[C,T,V] -> x[T,W]",
       .run = run_heads_merge,
       .check = check_heads_merge},
      {.kind = OpKind::rows_merge,
       .operands = "parts[C,N,W] -> x[M,W]",
       .run = run_rows_merge,
       .check = check_rows_merge},
      {.kind = OpKind::rows_split,
       .operands = "x[M,W] -> parts[C,N,W]",
       .run = run_rows_split,
       .check = check_rows_split},
      {OpKind::copy, "x[n*] -> y[n*]", run_copy},
      {.kind = OpKind::cast, .operands = "x:any[n*] -> y:any[n*]", .run = run_cast, .check = check_cast},
  };
  return kOps;
}

}  // namespace foresail
