// The way of rows to their experts and back, and the experts' matrix products.
//
// Where ops/op.h leaves a choice:
// - Rows that do not fit are the last ones of the last experts of a destination, in the order in which rows lie there.
// - An id that is no expert, a slot outside the buffer and counts beyond a source's rows stand for nothing.
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Dense>

#include <algorithm>

#include "kernels/reference/reference.h"

namespace foresail::reference {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMatrix = Eigen::Map<const Matrix>;
using MutableMatrix = Eigen::Map<Matrix>;
using Row = Eigen::Matrix<double, 1, Eigen::Dynamic>;

ConstMatrix rows_in(const Run& run, int i, int64_t first, int64_t count) {
  return {run.in(i) + first * run.in_dim(i, 1), count, run.in_dim(i, 1)};
}
MutableMatrix rows_out(const Run& run, int i, int64_t first, int64_t count) {
  return {run.out(i) + first * run.out_dim(i, 1), count, run.out_dim(i, 1)};
}
Eigen::Map<const Row> row_in(const Run& run, int i, int64_t row) {
  return {run.in(i) + row * run.in_dim(i, 1), run.in_dim(i, 1)};
}
Eigen::Map<Row> row_out(const Run& run, int i, int64_t row) {
  return {run.out(i) + row * run.out_dim(i, 1), run.out_dim(i, 1)};
}

void moe_dispatch(const Run& run) {
  const OpAttributes& a = run.attributes();
  const int64_t choices = run.op.inputs[1].elements(), local = a.experts / a.expert_ranks;
  const int64_t capacity = a.expert_rows / a.expert_ranks;
  std::fill(run.ids(1), run.ids(1) + choices, -1);
  std::fill(run.ids(2), run.ids(2) + a.experts, 0);
  rows_out(run, 0, 0, a.expert_rows).setZero();
  int64_t used = 0, dropped = 0;
  for (int64_t e = 0; e < a.experts; ++e) {
    if (e % local == 0) used = 0;
    for (int64_t i = 0; i < choices; ++i) {
      if (run.tokens(1)[i] != e) continue;
      if (used == capacity) {
        ++dropped;
        continue;
      }
      const int64_t slot = e / local * capacity + used++;
      run.ids(1)[i] = static_cast<int32_t>(slot);
      run.ids(2)[e] += 1;
      row_out(run, 0, slot) = row_in(run, 0, i / a.experts_per_token);
    }
  }
  run.out(3)[0] += static_cast<double>(dropped);
}

/// Row of a buffer of `rows` that a choice has, or -1.
int64_t slot_of(const int32_t* slots, int64_t choice, int64_t rows) {
  return slots[choice] >= 0 && slots[choice] < rows ? slots[choice] : -1;
}

void moe_dispatch_backward(const Run& run) {
  const int64_t rows = run.out_dim(0, 0), choices = run.in_dim(1, 1);
  rows_out(run, 0, 0, rows).setZero();
  for (int64_t i = 0; i < rows * choices; ++i) {
    const int64_t slot = slot_of(run.tokens(1), i, run.in_dim(0, 0));
    if (slot >= 0) row_out(run, 0, i / choices) += row_in(run, 0, slot);
  }
}

void moe_combine(const Run& run) {
  const int64_t rows = run.out_dim(0, 0), choices = run.in_dim(1, 1);
  rows_out(run, 0, 0, rows).setZero();
  for (int64_t i = 0; i < rows * choices; ++i) {
    const int64_t slot = slot_of(run.tokens(1), i, run.in_dim(0, 0));
    if (slot >= 0) row_out(run, 0, i / choices) += run.in(2)[i] * row_in(run, 0, slot);
  }
}

void moe_combine_backward(const Run& run) {
  const int64_t rows = run.in_dim(0, 0), choices = run.in_dim(2, 1);
  rows_out(run, 0, 0, run.out_dim(0, 0)).setZero();
  for (int64_t i = 0; i < rows * choices; ++i) {
    const int64_t slot = slot_of(run.tokens(2), i, run.in_dim(1, 0));
    run.out(1)[i] = slot < 0 ? 0 : row_in(run, 0, i / choices).dot(row_in(run, 1, slot));
    if (slot >= 0) row_out(run, 0, slot) = run.in(3)[i] * row_in(run, 0, i / choices);
  }
}

/// body(expert, first row, rows) for every run of rows, source by source; `weight` is [L,O,J], `counts` operand 2.
template <typename Body>
void over_runs(const Run& run, const TensorType& weight, const Body& body) {
  const int64_t experts = weight.shape[0], sources = run.in_dim(2, 0) / experts;
  const int64_t capacity = run.in_dim(0, 0) / sources;
  for (int64_t source = 0; source < sources; ++source) {
    int64_t used = 0;
    for (int64_t e = 0; e < experts; ++e) {
      const int64_t count = std::clamp<int64_t>(run.tokens(2)[source * experts + e], 0, capacity - used);
      body(e, source * capacity + used, count);
      used += count;
    }
  }
}

ConstMatrix weight_of(const Run& run, int64_t expert) {
  const int64_t rows = run.in_dim(1, 1), columns = run.in_dim(1, 2);
  return {run.in(1) + expert * rows * columns, rows, columns};
}

void expert_linear(const Run& run) {
  rows_out(run, 0, 0, run.out_dim(0, 0)).setZero();
  over_runs(run, run.op.inputs[1], [&](int64_t e, int64_t first, int64_t count) {
    rows_out(run, 0, first, count).noalias() = rows_in(run, 0, first, count) * weight_of(run, e).transpose();
  });
}

void expert_linear_backward_input(const Run& run) {
  rows_out(run, 0, 0, run.out_dim(0, 0)).setZero();
  over_runs(run, run.op.inputs[1], [&](int64_t e, int64_t first, int64_t count) {
    rows_out(run, 0, first, count).noalias() = rows_in(run, 0, first, count) * weight_of(run, e);
  });
}

void expert_linear_backward_weight(const Run& run) {
  const int64_t rows = run.out_dim(0, 1), columns = run.out_dim(0, 2);
  over_runs(run, run.op.outputs[0], [&](int64_t e, int64_t first, int64_t count) {
    MutableMatrix dw(run.out(0) + e * rows * columns, rows, columns);
    dw.noalias() += rows_in(run, 0, first, count).transpose() * rows_in(run, 1, first, count);
  });
}

void check_buffer(const Run& run, int64_t buffer_rows, int64_t choices) {
  const OpAttributes& a = run.attributes();
  require(run, a.expert_ranks > 0 && a.expert_rows > 0 && a.expert_rows % a.expert_ranks == 0,
          "the expert ranks have no equal shares of the rows");
  require(run, buffer_rows == a.expert_rows, "the buffer does not have expert_rows rows");
  require(run, choices > 0 && choices == a.experts_per_token, "the choices of a row are not experts_per_token");
}

void check_dispatch(const Run& run) {
  const OpAttributes& a = run.attributes();
  check_buffer(run, run.out_dim(0, 0), run.in_dim(1, 1));
  require(run, a.experts > 0 && a.experts % a.expert_ranks == 0 && run.out_dim(2, 0) == a.experts,
          "the expert ranks have no equal shares of the experts");
}
void check_rows(const Run& run) { check_buffer(run, run.in_dim(0, 0), run.in_dim(1, 1)); }
void check_combine_backward(const Run& run) { check_buffer(run, run.in_dim(1, 0), run.in_dim(2, 1)); }

void check_runs(const Run& run) {
  const int64_t experts = run.op.kind == OpKind::expert_linear_backward_weight ? run.out_dim(0, 0) : run.in_dim(1, 0);
  const int64_t counts = run.in_dim(2, 0);
  require(run, experts > 0 && counts >= experts && counts % experts == 0, "a source has no count for every expert");
  require(run, run.in_dim(0, 0) % (counts / experts) == 0, "the sources have no equal shares of the rows");
}

constexpr Entry kKernels[] = {
    {OpKind::moe_dispatch, "[T,H] i32[T,K] -> [ROWS,H] i32[T,K] i32[E] [1]", moe_dispatch, check_dispatch},
    {OpKind::moe_dispatch_backward, "[ROWS,H] i32[T,K] -> [T,H]", moe_dispatch_backward, check_rows},
    {OpKind::moe_combine, "[ROWS,H] i32[T,K] [T,K] -> [T,H]", moe_combine, check_rows},
    {OpKind::moe_combine_backward, "[T,H] [ROWS,H] i32[T,K] [T,K] -> [ROWS,H] [T,K]", moe_combine_backward,
     check_combine_backward},
    {OpKind::expert_linear, "[ROWS,J] [L,O,J] i32[M] -> [ROWS,O]", expert_linear, check_runs},
    {OpKind::expert_linear_backward_input, "[ROWS,O] [L,O,J] i32[M] -> [ROWS,J]", expert_linear_backward_input,
     check_runs},
    {OpKind::expert_linear_backward_weight, "[ROWS,O] [ROWS,J] i32[M] -> [L,O,J]", expert_linear_backward_weight,
     check_runs},
};

}  // namespace

std::span<const Entry> expert_kernels() { return kKernels; }

}  // namespace foresail::reference
