// Token and position embeddings. A rank holds rows [tensor_rank * V, +V) of a vocabulary-parallel table.
#include <algorithm>

#include "kernels/reference/reference.h"
#include "kernels/row_map.h"

namespace foresail::reference {
namespace {

/// Row of this rank's shard that holds `token`, or -1.
int64_t local_row(const Run& run, int32_t token, int64_t shard_rows) {
  const int64_t row = token - run.context().tensor_rank * shard_rows;
  return row >= 0 && row < shard_rows ? row : -1;
}

void embedding(const Run& run) {
  const int64_t rows = run.out_dim(0, 0), hidden = run.out_dim(0, 1), shard_rows = run.in_dim(1, 0);
  const int32_t* tokens = run.tokens(0);
  const double* table = run.in(1);
  double* y = run.out(0);
  for (int64_t t = 0; t < rows; ++t) {
    const int64_t row = local_row(run, tokens[t], shard_rows);
    if (row < 0) {
      std::fill_n(y + t * hidden, hidden, 0.0);
    } else {
      std::copy_n(table + row * hidden, hidden, y + t * hidden);
    }
  }
}

void embedding_backward(const Run& run) {
  const int64_t rows = run.in_dim(0, 0), hidden = run.in_dim(0, 1), shard_rows = run.out_dim(0, 0);
  const double* dy = run.in(0);
  const int32_t* tokens = run.tokens(1);
  double* dtable = run.out(0);
  for (int64_t t = 0; t < rows; ++t) {
    const int64_t row = local_row(run, tokens[t], shard_rows);
    if (row < 0) continue;
    for (int64_t h = 0; h < hidden; ++h) dtable[row * hidden + h] += dy[t * hidden + h];
  }
}

void position_embedding(const Run& run) {
  const int64_t rows = run.out_dim(0, 0), hidden = run.out_dim(0, 1);
  const RowMap map(run.attributes(), run.context(), rows);
  const double *x = run.in(0), *table = run.in(1);
  double* y = run.out(0);
  for (int64_t t = 0; t < rows; ++t) {
    const double* position = table + map.position(t) * hidden;
    for (int64_t h = 0; h < hidden; ++h) y[t * hidden + h] = x[t * hidden + h] + position[h];
  }
}

/// Adds to the positions that the rank holds; over ranks that hold others the gradients add up.
void position_embedding_backward(const Run& run) {
  const int64_t rows = run.in_dim(0, 0), hidden = run.in_dim(0, 1);
  const RowMap map(run.attributes(), run.context(), rows);
  const double* dy = run.in(0);
  double* dtable = run.out(0);
  for (int64_t t = 0; t < rows; ++t) {
    double* position = dtable + map.position(t) * hidden;
    for (int64_t h = 0; h < hidden; ++h) position[h] += dy[t * hidden + h];
  }
}

void check_positions(const Run& run, int64_t table_rows) {
  require_row_map(run, run.in_dim(0, 0));
  require(run, table_rows >= whole_length(run.attributes()), "the table has fewer rows than the sequence");
}

void check_position_table(const Run& run) { check_positions(run, run.in_dim(1, 0)); }
void check_position_gradient(const Run& run) { check_positions(run, run.out_dim(0, 0)); }

constexpr Entry kKernels[] = {
    {OpKind::embedding, "i32[T] [V,H] -> [T,H]", embedding},
    {OpKind::embedding_backward, "[T,H] i32[T] -> [V,H]", embedding_backward},
    {OpKind::position_embedding, "[T,H] [M,H] -> [T,H]", position_embedding, check_position_table},
    {OpKind::position_embedding_backward, "[T,H] -> [M,H]", position_embedding_backward, check_position_gradient},
};

}  // namespace

std::span<const Entry> embedding_kernels() { return kKernels; }

}  // namespace foresail::reference
