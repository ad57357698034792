// The experts' matrix products: a weight for every run of rows. How long the runs are is known only when a kernel runs, so
// the products are made for any size, each on one thread, and threads share the rows (or the columns of a gradient).
#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/error.h"
#include "kernels/cpu/internal.h"
#include "kernels/cpu/operand_check.h"

namespace foresail {
namespace {

/// A share smaller than this is not worth a thread, nor rows fewer than those of a micro-kernel.
constexpr int64_t kProductGrain = 1 << 17;
constexpr int64_t kLeastRows = 16;

/// The runs of rows of a buffer, source by source: `counts` [M,L], each source's rows begin at a multiple of `capacity`.
struct Runs {
  const int32_t* counts;
  int64_t experts, sources, capacity;

  Runs(const OpInstance& op, const TensorType& weight, const int32_t* counts)
      : counts(counts),
        experts(weight.shape[0]),
        sources(op.inputs[2].shape[0] / experts),
        capacity(rows_of(op.inputs[0]) / sources) {}

  /// body(expert, first row, rows) for every run, in order. Counts beyond a source's rows stand for nothing.
  template <typename Body>
  void each(const Body& body) const {
    for (int64_t source = 0; source < sources; ++source) {
      int64_t used = 0;
      for (int64_t e = 0; e < experts; ++e) {
        const int64_t count = std::clamp<int64_t>(counts[source * experts + e], 0, capacity - used);
        if (count > 0) body(e, source * capacity + used, count);
        used += count;
      }
    }
  }

  int64_t rows() const {
    int64_t sum = 0;
    each([&](int64_t, int64_t, int64_t count) { sum += count; });
    return sum;
  }
  int64_t rows_of_expert(int64_t expert) const {
    int64_t sum = 0;
    each([&](int64_t e, int64_t, int64_t count) { sum += e == expert ? count : 0; });
    return sum;
  }
};

/// Zeros in the rows of a source behind its runs.
void clear_unused(const Runs& runs, float* y, int64_t columns) {
  const auto clear = [&](int64_t source) {
    int64_t used = source * runs.capacity;
    runs.each([&](int64_t, int64_t first, int64_t count) {
      if (first / runs.capacity == source) used = first + count;
    });
    const int64_t unused = (source + 1) * runs.capacity - used;
    std::memset(y + used * columns, 0, static_cast<size_t>(unused * columns) * sizeof(float));
  };
  parallel_ranges(runs.sources, row_grain(runs.capacity * columns), [&](int64_t begin, int64_t end, int) {
    for (int64_t source = begin; source < end; ++source) clear(source);
  });
}

/// Rows of `inner` x `outer` products that make a thread worth waking.
int64_t product_grain(int64_t inner, int64_t outer) {
  return std::max(kLeastRows, kProductGrain / std::max<int64_t>(1, inner * outer));
}

void check_success(const std::atomic<bool>& failed) {
  if (failed) throw_environment("an expert's matrix product", "oneDNN failed", "check the memory that is left");
}

GemmStrides plain(int64_t columns) { return {.row = columns, .column = 1}; }
GemmStrides transposed(int64_t columns) { return {.row = 1, .column = columns}; }

/// out [R, columns] = in [R, inner] x (the run's weight, read by `weight_strides`).
void run_rows(const OpInstance& op, const KernelArguments& a, const GemmStrides& weight_strides) {
  const Runs runs(op, op.inputs[1], input<int32_t>(a, 2));
  const int64_t inner = columns_of(op.inputs[0]), columns = columns_of(op.outputs[0]);
  clear_unused(runs, output(a, 0), columns);
  std::atomic<bool> failed{false};
  parallel_ranges(runs.rows(), product_grain(inner, columns), [&](int64_t begin, int64_t end, int) {
    int64_t passed = 0;  // rows of the runs before
    runs.each([&](int64_t e, int64_t first, int64_t count) {
      const int64_t from = std::max<int64_t>(0, begin - passed), to = std::min(count, end - passed);
      passed += count;
      if (from >= to) return;
      const GemmShape shape{
          .m = to - from, .n = columns, .k = inner, .a = plain(inner), .b = weight_strides, .c = plain(columns)};
      const float* rows = input(a, 0) + (first + from) * inner;
      if (!run_product(shape, rows, input(a, 1) + e * inner * columns, output(a, 0) + (first + from) * columns)) {
        failed = true;
      }
    });
  });
  check_success(failed);
}

void run_forward(const OpInstance& op, const KernelArguments& a) {
  run_rows(op, a, transposed(columns_of(op.inputs[0])));
}

void run_backward_input(const OpInstance& op, const KernelArguments& a) {
  run_rows(op, a, plain(columns_of(op.outputs[0])));
}

/// dw[e] rows [from, to) += dy^T x over the runs of the expert, sources in their order.
bool add_weight_gradient(const OpInstance& op, const KernelArguments& a, const Runs& runs, int64_t expert, int64_t from,
                         int64_t to) {
  const int64_t outer = columns_of(op.inputs[0]), inner = columns_of(op.inputs[1]);
  bool success = true;
  runs.each([&](int64_t e, int64_t first, int64_t count) {
    if (e != expert) return;
    const GemmShape shape{.m = to - from,
                          .n = inner,
                          .k = count,
                          .a = transposed(outer),
                          .b = plain(inner),
                          .c = plain(inner),
                          .accumulate = true};
    float* dw = output(a, 0) + (e * outer + from) * inner;
    success &= run_product(shape, input(a, 0) + first * outer + from, input(a, 1) + first * inner, dw);
  });
  return success;
}

/// Threads own rows of dw, shared out by work: a row of an expert is as much work as the expert has routed rows.
void run_backward_weight(const OpInstance& op, const KernelArguments& a) {
  const Runs runs(op, op.outputs[0], input<int32_t>(a, 2));
  const int64_t outer = columns_of(op.inputs[0]), inner = columns_of(op.inputs[1]);
  std::atomic<bool> failed{false};
  const int64_t grain = std::max<int64_t>(1, kProductGrain / std::max<int64_t>(1, inner));
  parallel_ranges(runs.rows() * outer, grain, [&](int64_t begin, int64_t end, int) {
    int64_t passed = 0;  // work of the experts before
    for (int64_t e = 0; e < runs.experts; ++e) {
      const int64_t rows = runs.rows_of_expert(e), work = rows * outer;
      // The row of dw that a position in the work is in; the same for the end of one thread and the beginning of the next.
      const auto row_at = [&](int64_t position) {
        const int64_t inside = std::clamp<int64_t>(position - passed, 0, work);
        return inside == work ? outer : inside / rows / kLeastRows * kLeastRows;
      };
      if (rows > 0) {
        const int64_t from = row_at(begin), to = row_at(end);
        if (from < to && !add_weight_gradient(op, a, runs, e, from, to)) failed = true;
      }
      passed += work;
    }
  });
  check_success(failed);
}

void check_runs(const OpInstance& op) {
  const TensorType& weight = op.kind == OpKind::expert_linear_backward_weight ? op.outputs[0] : op.inputs[1];
  const int64_t experts = weight.shape[0], counts = op.inputs[2].shape[0];
  if (experts < 1 || counts < experts || counts % experts != 0) {
    refuse_operator(op, "a source has no count for every expert");
  }
  if (rows_of(op.inputs[0]) % (counts / experts) != 0) {
    refuse_operator(op, "the sources have no equal shares of the rows");
  }
}

}  // namespace

std::span<const CpuOp> expert_linear_ops() {
  static constexpr CpuOp kOps[] = {
      {.kind = OpKind::expert_linear,
       .operands = "x[R,J] w[L,O,J] counts:i32[M] -> y[R,O]",
       .run = run_forward,
       .check = check_runs},
      {.kind = OpKind::expert_linear_backward_input,
       .operands = "dy[R,O] w[L,O,J] counts:i32[M] -> dx[R,J]",
       .run = run_backward_input,
       .check = check_runs},
      {.kind = OpKind::expert_linear_backward_weight,
       .operands = "dy[R,O] x[R,J] counts:i32[M] -> dw[L,O,J]",
       .run = run_backward_weight,
       .check = check_runs},
  };
  return kOps;
}

}  // namespace foresail
