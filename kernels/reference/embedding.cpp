// Token and position embeddings. A rank holds rows [tensor_rank * V, +V) of a vocabulary-parallel table.
#include <algorithm>

#include "kernels/reference/reference.h"

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
  const int64_t rows = run.out_dim(0, 0), hidden = run.out_dim(0, 1), length = run.attributes().sequence_length;
  const double *x = run.in(0), *table = run.in(1);
  double* y = run.out(0);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t h = 0; h < hidden; ++h) y[t * hidden + h] = x[t * hidden + h] + table[t % length * hidden + h];
  }
}

void position_embedding_backward(const Run& run) {
  const int64_t rows = run.in_dim(0, 0), hidden = run.in_dim(0, 1), length = run.attributes().sequence_length;
  const double* dy = run.in(0);
  double* dtable = run.out(0);
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t h = 0; h < hidden; ++h) dtable[t % length * hidden + h] += dy[t * hidden + h];
  }
}

void check_position_table(const Run& run) {
  require(run, run.in_dim(1, 0) >= run.attributes().sequence_length, "the table has fewer rows than the sequence");
}

void check_position_gradient(const Run& run) {
  require(run, run.out_dim(0, 0) >= run.attributes().sequence_length, "the table has fewer rows than the sequence");
}

constexpr Entry kKernels[] = {
    {OpKind::embedding, "i32[T] [V,H] -> [T,H]", embedding},
    {OpKind::embedding_backward, "[T,H] i32[T] -> [V,H]", embedding_backward},
    {OpKind::position_embedding, "[B*S,H] [M,H] -> [B*S,H]", position_embedding, check_position_table},
    {OpKind::position_embedding_backward, "[B*S,H] -> [M,H]", position_embedding_backward, check_position_gradient},
};

}  // namespace

std::span<const Entry> embedding_kernels() { return kKernels; }

}  // namespace foresail::reference
