// What the files of the cpu back end share: the row that describes one kind of operator, and typed access to operands.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "core/parallel.h"
#include "kernels/cpu/gemm.h"
#include "kernels/device.h"

namespace foresail {

/// How this back end runs one kind of operator. Either `run` (a plain function of the operator and its arguments) or
/// `bind` (a kernel that holds library primitives) is set.
struct CpuOp {
  OpKind kind{};
  /// Operands in the notation of operand_check.h: "x[T,H] w[H] -> y[T,H] rstd[T]".
  std::string_view operands;
  void (*run)(const OpInstance& op, const KernelArguments& arguments) = nullptr;
  /// Bytes of workspace that `run` may touch with at most `threads` threads; null: none.
  int64_t (*workspace)(const OpInstance& op, int threads) = nullptr;
  std::unique_ptr<Kernel> (*bind)(const OpInstance& op, GemmLibrary& library) = nullptr;
  /// Workspace of a kernel made by `bind`.
  int64_t (*bound_workspace)(const OpInstance& op, GemmLibrary& library) = nullptr;
  /// What the pattern cannot say; throws bad_input. Null: nothing.
  void (*check)(const OpInstance& op) = nullptr;
};

// One list per file.
std::span<const CpuOp> embedding_ops();
std::span<const CpuOp> norm_ops();
std::span<const CpuOp> qk_norm_ops();
std::span<const CpuOp> linear_ops();
std::span<const CpuOp> rope_ops();
std::span<const CpuOp> attention_ops();
std::span<const CpuOp> attention_backward_ops();
std::span<const CpuOp> unfused_attention_ops();
std::span<const CpuOp> latent_attention_ops();
std::span<const CpuOp> rearrange_ops();
std::span<const CpuOp> router_ops();
std::span<const CpuOp> router_balance_ops();
std::span<const CpuOp> dispatch_ops();
std::span<const CpuOp> expert_linear_ops();
std::span<const CpuOp> element_wise_ops();
std::span<const CpuOp> dropout_ops();
std::span<const CpuOp> loss_ops();
std::span<const CpuOp> optimizer_ops();

template <typename T = float>
const T* input(const KernelArguments& arguments, size_t index) {
  return static_cast<const T*>(arguments.inputs[index]);
}

template <typename T = float>
T* output(const KernelArguments& arguments, size_t index) {
  return static_cast<T*>(arguments.outputs[index]);
}

/// Rows (first dimension) and columns (last dimension) of an operand.
inline int64_t rows_of(const TensorType& type) { return type.shape.front(); }
inline int64_t columns_of(const TensorType& type) { return type.shape.back(); }

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// Elements that make a thread worth waking for an element-wise pass (a fork and join costs about 2 microseconds).
inline constexpr int64_t kElementGrain = 4096;
/// Rows of `columns` elements for the same work.
inline int64_t row_grain(int64_t columns) {
  return std::max<int64_t>(1, kElementGrain / std::max<int64_t>(1, columns));
}
/// Threads that parallel_ranges(count, grain) uses at most: bounds the partial sums to combine.
inline int team_for(int64_t count, int64_t grain) {
  return static_cast<int>(std::min<int64_t>(thread_count(), (count + grain - 1) / grain));
}

/// out[i] = a[i] + b[i] on the calling thread; out may be a or b.
void add_range(const float* a, const float* b, float* out, int64_t count);
/// out[c] += the sum over `parts` of partial[part * stride + c], in order of the parts.
void add_partial_sums(const float* partial, int64_t stride, int parts, float* out, int64_t count);

}  // namespace foresail
