// Inside the reference device: how a kernel is written and how its operands are checked.
//
// A kernel is a function of (operator, arguments) that reads like the formula; a table in device.cpp joins it with the
// pattern of its operands. Everything is double, one thread; tokens and targets are i32.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/device.h"

namespace foresail::reference {

/// The operands of one run, typed. Sizes come from the operator, which the pattern has checked.
struct Run {
  const OpInstance& op;
  const KernelArguments& arguments;

  const OpAttributes& attributes() const { return op.attributes; }
  const KernelContext& context() const { return arguments.context; }
  const StepInputs& step() const { return *arguments.context.step; }
  const double* in(int i) const { return static_cast<const double*>(arguments.inputs[i]); }
  const int32_t* tokens(int i) const { return static_cast<const int32_t*>(arguments.inputs[i]); }
  int32_t* ids(int i) const { return static_cast<int32_t*>(arguments.outputs[i]); }
  double* out(int i) const { return static_cast<double*>(arguments.outputs[i]); }
  /// Element `at` of an operand that the pattern calls `real`, whatever its type.
  double real_in(int i, int64_t at) const {
    const void* data = arguments.inputs[i];
    return op.inputs[i].dtype == DType::f32 ? static_cast<const float*>(data)[at]
                                            : static_cast<const double*>(data)[at];
  }
  void set_real(int i, int64_t at, double value) const {
    void* data = arguments.outputs[i];
    if (op.outputs[i].dtype == DType::f32) {
      static_cast<float*>(data)[at] = static_cast<float>(value);
    } else {
      static_cast<double*>(data)[at] = value;
    }
  }
  double* workspace() const { return static_cast<double*>(arguments.workspace); }
  bool has_input(int i) const { return i < static_cast<int>(op.inputs.size()); }
  bool has_output(int i) const { return i < static_cast<int>(op.outputs.size()); }
  int64_t in_dim(int i, int dim) const { return op.inputs[i].shape[dim]; }
  int64_t out_dim(int i, int dim) const { return op.outputs[i].shape[dim]; }
};

using Function = void (*)(const Run&);

/// One row of the table of kernels.
struct Entry {
  OpKind kind;
  /// Operands as in ops/op.h: "[T,K] [N,K] ?[N] -> [T,N]"; `?` marks one that may be left out (only the last of a
  /// side), `i32` an integer tensor, `table` and `real` one in f64 or f32, `[*]` any shape, the same wherever it stands, `|`
  /// shapes of different rank to choose from. A dimension is a product of numbers and
  /// symbols; a symbol is bound where it first is the only unknown of its product. Given by the attributes alone (and
  /// fitting nothing if those are not positive): S, A, G, D, AD = A D, AW = A W (columns of q and o; W: width
  /// of values), KV = G (D + W), QKV = AD + KV, AG = A+G, RO = what is rotated of a head, RO2 = RO/2, LKV = A (D - RO + W),
  /// C = context_parallel.
  std::string_view operands;
  Function run;
  Function check = nullptr;    ///< what the pattern cannot say; throws through `refuse` (arguments are empty)
  int64_t workspace_rows = 0;  ///< workspace in doubles = workspace_rows * S
};

/// The kernels of each file.
std::span<const Entry> embedding_kernels();
std::span<const Entry> norm_kernels();
std::span<const Entry> linear_kernels();
std::span<const Entry> rope_kernels();
std::span<const Entry> attention_kernels();
std::span<const Entry> unfused_attention_kernels();
std::span<const Entry> ring_attention_kernels();
std::span<const Entry> latent_attention_kernels();
std::span<const Entry> rearrange_kernels();
std::span<const Entry> router_kernels();
std::span<const Entry> expert_kernels();
std::span<const Entry> element_wise_kernels();
std::span<const Entry> loss_kernels();
std::span<const Entry> optimizer_kernels();

/// Throws bad_input unless every operand has the dtype and shape of the pattern.
void check_operands(const OpInstance& op, std::string_view pattern);

/// Throws bad_input naming the op and the cause.
[[noreturn]] void refuse(const OpInstance& op, const std::string& cause);

/// Throws bad_input unless the condition holds.
inline void require(const Run& run, bool condition, const char* cause) {
  if (!condition) refuse(run.op, cause);
}

/// Throws bad_input unless `rows` rows have places in the batch (kernels/row_map.h).
void require_row_map(const Run& run, int64_t rows);

}  // namespace foresail::reference
