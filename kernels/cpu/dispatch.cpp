// The way of rows to their experts and back. Which slot of the buffer a choice gets is settled by one thread in the order
// of the rows, so it is the same for every team; threads then move rows.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dispatch.cpp"
#include "hwy/foreach_target.h"  // must precede highway.h

#include <algorithm>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/internal.h"
#include "kernels/cpu/operand_check.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace foresail {
namespace HWY_NAMESPACE {
namespace {

/// y += factor x.
void add_scaled(const float* x, float factor, float* y, int64_t count) {
  const V32 scale = set(factor);
  each_vector(count,
              [=](auto part, int64_t i) { part.store(hn::MulAdd(scale, part.load(x + i), part.load(y + i)), y + i); });
}

/// y = factor x; returns the sum of x z.
float scale_and_multiply(const float* x, float factor, const float* z, float* y, int64_t count) {
  const V32 scale = set(factor);
  return sum_vectors(count, [=](auto part, int64_t i) {
    const V32 value = part.load(x + i);
    part.store(hn::Mul(scale, value), y + i);
    return hn::Mul(value, part.load(z + i));
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace foresail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foresail {
namespace {

HWY_EXPORT(add_scaled);
HWY_EXPORT(scale_and_multiply);

size_t row_bytes(int64_t rows, int64_t columns) { return static_cast<size_t>(rows * columns) * sizeof(float); }

/// body(row) for every row of [rows, columns], on all threads.
template <typename Body>
void over_rows(int64_t rows, int64_t columns, const Body& body) {
  parallel_ranges(rows, row_grain(columns), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

void clear_rows(float* rows, int64_t count, int64_t columns) {
  parallel_ranges(count, row_grain(columns), [&](int64_t begin, int64_t end, int) {
    std::memset(rows + begin * columns, 0, row_bytes(end - begin, columns));
  });
}

// An id that is no expert and a slot outside the buffer stand for nothing.
bool is_expert(int32_t id, int64_t experts) { return id >= 0 && id < experts; }
/// Whether a choice has a row in a buffer of `rows`.
bool is_slot(int32_t slot, int64_t rows) { return slot >= 0 && slot < rows; }

/// The slots of one expert's rows that are still free.
struct Slots {
  int64_t next = 0, end = 0;
};

int64_t dispatch_workspace(const OpInstance& op, int) {
  return op.attributes.experts * static_cast<int64_t>(sizeof(Slots));
}

/// Where the rows of each expert go; `counts` are those that want to, then those that may. Returns how many do not fit.
int64_t place_experts(const OpAttributes& attributes, int32_t* counts, Slots* slots) {
  const int64_t local = attributes.experts / attributes.expert_ranks;
  const int64_t capacity = attributes.expert_rows / attributes.expert_ranks;
  int64_t dropped = 0, used = 0;
  for (int64_t e = 0; e < attributes.experts; ++e) {
    if (e % local == 0) used = 0;
    const int64_t first = e / local * capacity + used, kept = std::min<int64_t>(counts[e], capacity - used);
    slots[e] = {first, first + kept};
    dropped += counts[e] - kept;
    used += kept;
    counts[e] = static_cast<int32_t>(kept);
  }
  return dropped;
}

/// Zeros in the rows of every destination behind those of its last expert.
void clear_unused(const OpAttributes& attributes, const Slots* slots, float* send, int64_t columns) {
  const int64_t local = attributes.experts / attributes.expert_ranks;
  const int64_t capacity = attributes.expert_rows / attributes.expert_ranks;
  for (int64_t rank = 0; rank < attributes.expert_ranks; ++rank) {
    const int64_t used = slots[(rank + 1) * local - 1].end, end = (rank + 1) * capacity;
    clear_rows(send + used * columns, end - used, columns);
  }
}

void run_dispatch(const OpInstance& op, const KernelArguments& a) {
  const OpAttributes& attributes = op.attributes;
  const int64_t rows = rows_of(op.inputs[0]), columns = columns_of(op.inputs[0]), choices = columns_of(op.inputs[1]);
  const int32_t* index = input<int32_t>(a, 1);
  int32_t *slot = output<int32_t>(a, 1), *counts = output<int32_t>(a, 2);
  Slots* slots = static_cast<Slots*>(a.workspace);
  std::fill_n(counts, attributes.experts, 0);
  for (int64_t i = 0; i < rows * choices; ++i) {
    if (is_expert(index[i], attributes.experts)) counts[index[i]] += 1;
  }
  output<double>(a, 3)[0] += static_cast<double>(place_experts(attributes, counts, slots));
  clear_unused(attributes, slots, output(a, 0), columns);
  for (int64_t i = 0; i < rows * choices; ++i) {
    slot[i] = -1;
    if (!is_expert(index[i], attributes.experts)) continue;
    Slots& free = slots[index[i]];
    if (free.next < free.end) slot[i] = static_cast<int32_t>(free.next++);
  }
  over_rows(rows, choices * columns, [&](int64_t row) {
    for (int64_t i = row * choices; i < (row + 1) * choices; ++i) {
      if (slot[i] < 0) continue;
      std::memcpy(output(a, 0) + slot[i] * columns, input(a, 0) + row * columns, row_bytes(1, columns));
    }
  });
}

void run_dispatch_backward(const OpInstance& op, const KernelArguments& a) {
  const int64_t columns = columns_of(op.outputs[0]), choices = columns_of(op.inputs[1]);
  const int32_t* slot = input<int32_t>(a, 1);
  over_rows(rows_of(op.outputs[0]), choices * columns, [&](int64_t row) {
    float* dx = output(a, 0) + row * columns;
    std::memset(dx, 0, row_bytes(1, columns));
    for (int64_t i = row * choices; i < (row + 1) * choices; ++i) {
      if (is_slot(slot[i], rows_of(op.inputs[0]))) add_range(dx, input(a, 0) + slot[i] * columns, dx, columns);
    }
  });
}

void run_combine(const OpInstance& op, const KernelArguments& a) {
  const int64_t columns = columns_of(op.outputs[0]), choices = columns_of(op.inputs[1]);
  const int32_t* slot = input<int32_t>(a, 1);
  over_rows(rows_of(op.outputs[0]), choices * columns, [&](int64_t row) {
    float* y = output(a, 0) + row * columns;
    std::memset(y, 0, row_bytes(1, columns));
    for (int64_t i = row * choices; i < (row + 1) * choices; ++i) {
      if (!is_slot(slot[i], rows_of(op.inputs[0]))) continue;
      HWY_DYNAMIC_DISPATCH(add_scaled)(input(a, 0) + slot[i] * columns, input(a, 2)[i], y, columns);
    }
  });
}

/// No two choices share a slot, so threads own the rows that they write.
void run_combine_backward(const OpInstance& op, const KernelArguments& a) {
  const int64_t columns = columns_of(op.inputs[0]), choices = columns_of(op.inputs[2]);
  const int32_t* slot = input<int32_t>(a, 2);
  clear_rows(output(a, 0), rows_of(op.outputs[0]), columns);
  over_rows(rows_of(op.inputs[0]), choices * columns, [&](int64_t row) {
    for (int64_t i = row * choices; i < (row + 1) * choices; ++i) {
      float& dgate = output(a, 1)[i];
      dgate = 0;
      if (!is_slot(slot[i], rows_of(op.inputs[1]))) continue;
      const int64_t at = slot[i] * columns;
      dgate = HWY_DYNAMIC_DISPATCH(scale_and_multiply)(input(a, 0) + row * columns, input(a, 3)[i], input(a, 1) + at,
                                                       output(a, 0) + at, columns);
    }
  });
}

void check_buffer(const OpInstance& op, const TensorType& buffer, const TensorType& slot) {
  const OpAttributes& a = op.attributes;
  if (a.expert_ranks < 1 || a.expert_rows < 1 || a.expert_rows % a.expert_ranks != 0) {
    refuse_operator(op, "the expert ranks have no equal shares of the rows");
  }
  if (rows_of(buffer) != a.expert_rows) refuse_operator(op, "the buffer does not have expert_rows rows");
  if (columns_of(slot) < 1 || columns_of(slot) != a.experts_per_token) {
    refuse_operator(op, "the choices of a row are not experts_per_token");
  }
}

void check_dispatch(const OpInstance& op) {
  const OpAttributes& a = op.attributes;
  check_buffer(op, op.outputs[0], op.inputs[1]);
  if (a.experts < 1 || a.experts % a.expert_ranks != 0 || rows_of(op.outputs[2]) != a.experts) {
    refuse_operator(op, "the expert ranks have no equal shares of the experts");
  }
}
void check_rows(const OpInstance& op) { check_buffer(op, op.inputs[0], op.inputs[1]); }
void check_combine_backward(const OpInstance& op) { check_buffer(op, op.inputs[1], op.inputs[2]); }

}  // namespace

std::span<const CpuOp> dispatch_ops() {
  static constexpr CpuOp kOps[] = {
      {.kind = OpKind::moe_dispatch,
       .operands = "x[T,H] index:i32[T,K] -> send[R,H] slot:i32[T,K] counts:i32[E] overflow:f64[1]",
       .run = run_dispatch,
       .workspace = dispatch_workspace,
       .check = check_dispatch},
      {.kind = OpKind::moe_dispatch_backward,
       .operands = "dsend[R,H] slot:i32[T,K] -> dx[T,H]",
       .run = run_dispatch_backward,
       .check = check_rows},
      {.kind = OpKind::moe_combine,
       .operands = "rows[R,H] slot:i32[T,K] gate[T,K] -> y[T,H]",
       .run = run_combine,
       .check = check_rows},
      {.kind = OpKind::moe_combine_backward,
       .operands = "dy[T,H] rows[R,H] slot:i32[T,K] gate[T,K] -> drows[R,H] dgate[T,K]",
       .run = run_combine_backward,
       .check = check_combine_backward},
  };
  return kOps;
}

}  // namespace foresail
#endif  // HWY_ONCE
