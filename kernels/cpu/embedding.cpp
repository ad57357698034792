// Token and position embeddings. A rank holds rows [tensor_rank V, + V) of the token table; other tokens give 0, and
// the sum over the tensor-parallel group completes the row.
#include <cstring>

#include "kernels/cpu/internal.h"
#include "kernels/cpu/operand_check.h"
#include "kernels/row_map.h"

namespace foresail {
namespace {

/// Row of this rank's table, or -1.
int64_t local_row(int32_t token, const KernelContext& context, int64_t table_rows) {
  const int64_t row = token - context.tensor_rank * table_rows;
  return row >= 0 && row < table_rows ? row : -1;
}

void run_embedding(const OpInstance& op, const KernelArguments& a) {
  const int64_t columns = columns_of(op.inputs[1]), table_rows = rows_of(op.inputs[1]);
  const size_t row_bytes = static_cast<size_t>(columns) * sizeof(float);
  parallel_ranges(rows_of(op.outputs[0]), row_grain(columns), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t row = local_row(input<int32_t>(a, 0)[t], a.context, table_rows);
      float* y = output(a, 0) + t * columns;
      if (row < 0) {
        std::memset(y, 0, row_bytes);
      } else {
        std::memcpy(y, input(a, 1) + row * columns, row_bytes);
      }
    }
  });
}

/// Threads own columns, and every column is summed in order of the rows: the same for any number of threads.
void run_embedding_backward(const OpInstance& op, const KernelArguments& a) {
  const int64_t columns = columns_of(op.inputs[0]), rows = rows_of(op.inputs[0]), table_rows = rows_of(op.outputs[0]);
  parallel_ranges(columns, 16, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = 0; t < rows; ++t) {
      const int64_t row = local_row(input<int32_t>(a, 1)[t], a.context, table_rows);
      if (row < 0) continue;
      float* sum = output(a, 0) + row * columns + begin;
      add_range(sum, input(a, 0) + t * columns + begin, sum, end - begin);
    }
  });
}

void run_position_embedding(const OpInstance& op, const KernelArguments& a) {
  const int64_t columns = columns_of(op.inputs[0]), rows = rows_of(op.inputs[0]);
  const RowMap map(op.attributes, a.context, rows);
  parallel_ranges(rows, row_grain(columns), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      add_range(input(a, 0) + t * columns, input(a, 1) + map.position(t) * columns, output(a, 0) + t * columns,
                columns);
    }
  });
}

/// Threads own rows of a sequence, hence positions; sequences are added in order. Only positions that the rank holds get
/// anything: over ranks that hold others the gradients add up.
void run_position_embedding_backward(const OpInstance& op, const KernelArguments& a) {
  const int64_t columns = columns_of(op.inputs[0]), rows = rows_of(op.inputs[0]);
  const int64_t length = op.attributes.sequence_length;
  const RowMap map(op.attributes, a.context, rows);
  parallel_ranges(length, row_grain(columns * std::max<int64_t>(1, rows / length)),
                  [&](int64_t begin, int64_t end, int) {
                    for (int64_t row = 0; row < rows; ++row) {
                      const int64_t in_sequence = (map.first_local() + row) % length;
                      if (in_sequence < begin || in_sequence >= end) continue;
                      float* sum = output(a, 0) + map.position(row) * columns;
                      add_range(sum, input(a, 0) + row * columns, sum, columns);
                    }
                  });
}

void check_positions(const OpInstance& op) {
  const TensorType& table = op.kind == OpKind::position_embedding ? op.inputs[1] : op.outputs[0];
  check_row_map(op, rows_of(op.inputs[0]));
  if (rows_of(table) < whole_length(op.attributes)) refuse_operator(op, "the table has fewer rows than the sequence");
}

}  // namespace

std::span<const CpuOp> embedding_ops() {
  static constexpr CpuOp kOps[] = {
      {.kind = OpKind::embedding, .operands = "tokens:i32[T] table[V,H] -> y[T,H]", .run = run_embedding},
      {.kind = OpKind::embedding_backward,
       .operands = "dy[T,H] tokens:i32[T] -> dtable[V,H]",
       .run = run_embedding_backward},
      {.kind = OpKind::position_embedding,
       .operands = "x[T,H] table[M,H] -> y[T,H]",
       .run = run_position_embedding,
       .check = check_positions},
      {.kind = OpKind::position_embedding_backward,
       .operands = "dy[T,H] -> dtable[M,H]",
       .run = run_position_embedding_backward,
       .check = check_positions},
  };
  return kOps;
}

}  // namespace foresail
