// Dropout (Srivastava et al. 2014). Which elements are kept is a function of their global position
// (kernels/dropout_mask.h).
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/dropout.cpp"
#include "hwy/foreach_target.h"  // must precede highway.h

#include "hwy/highway.h"
#include "kernels/cpu/dropout-inl.h"
#include "kernels/cpu/internal.h"
#include "kernels/cpu/operand_check.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/row_map.h"

HWY_BEFORE_NAMESPACE();
namespace foresail {
namespace HWY_NAMESPACE {
namespace {

/// Dropped elements become 0 whatever they hold: scores above the diagonal may be anything.
void dropout_row(const DropoutMask& mask, uint64_t position, const float* x, float* y, int64_t columns) {
  constexpr int64_t kChunk = 1024;
  HWY_ALIGN float factors[kChunk];
  for (int64_t begin = 0; begin < columns; begin += kChunk) {
    const int64_t count = std::min(kChunk, columns - begin);
    dropout_factors(mask, position + static_cast<uint64_t>(begin), count, factors);
    each_vector(count, [=, &factors](auto part, int64_t i) {
      const V32 factor = part.load(factors + i);
      const auto dropped = hn::Eq(factor, zero());
      part.store(hn::IfThenZeroElse(dropped, hn::Mul(part.load(x + begin + i), factor)), y + begin + i);
    });
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace foresail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foresail {
namespace {

HWY_EXPORT(dropout_row);

int64_t row_count(const TensorType& type) { return type.shape.back() == 0 ? 0 : type.elements() / type.shape.back(); }

/// Drops every row by the mask at position_of(row).
template <typename Position>
void drop_rows(const OpInstance& op, const KernelArguments& a, const Position& position_of) {
  const DropoutMask mask = dropout_mask(op.attributes, a.context);
  const int64_t columns = op.outputs[0].shape.back();
  parallel_ranges(row_count(op.outputs[0]), row_grain(columns), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      HWY_DYNAMIC_DISPATCH(dropout_row)
      (mask, position_of(row), input(a, 0) + row * columns, output(a, 0) + row * columns, columns);
    }
  });
}

/// Four dimensions are scores [B, heads, S, S], whose heads are sharded; any other shape is rows of its last dimension.
void run_dropout(const OpInstance& op, const KernelArguments& a) {
  const auto& shape = op.outputs[0].shape;
  if (op.outputs[0].elements() == 0) return;
  if (shape.size() == 4) {
    const int64_t heads = shape[1], length = shape[2];
    return drop_rows(op, a, [&](int64_t row) {
      return dropout_score_position(a.context, op.attributes.heads_cut, row / (heads * length), row / length % heads,
                                    heads, row % length, length);
    });
  }
  const RowMap map(op.attributes, a.context, row_count(op.outputs[0]));
  drop_rows(op, a, [&](int64_t row) { return dropout_row_position(map.global_row(row), shape.back()); });
}

void check_dropout(const OpInstance& op) {
  const auto& shape = op.outputs[0].shape;
  const double probability = op.attributes.probability;
  if (!(probability >= 0 && probability < 1)) refuse_operator(op, "the dropout probability is not in [0, 1)");
  if (shape.empty()) refuse_operator(op, "the operand has no dimension");
  if (op.inputs[0].shape != shape) refuse_operator(op, "input and output differ in shape");
  if (shape.size() == 4 && shape[2] != shape[3]) refuse_operator(op, "four dimensions must be scores [B, A, S, S]");
  if (shape.size() != 4 && op.outputs[0].elements() > 0) check_row_map(op, row_count(op.outputs[0]));
}

}  // namespace

std::span<const CpuOp> dropout_ops() {
  static constexpr CpuOp kOps[] = {
      {.kind = OpKind::dropout, .operands = "x[n*] -> y[n*]", .run = run_dropout, .check = check_dropout}};
  return kOps;
}

}  // namespace foresail
#endif  // HWY_ONCE
