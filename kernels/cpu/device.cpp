// The cpu device: finds an operator's row, checks its operands and wraps its function as a Kernel.
#include <fmt/format.h>

#include <array>

#include "core/error.h"
#include "core/float16.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/internal.h"
#include "kernels/cpu/operand_check.h"
#include "kernels/rounded_storage.h"

namespace foresail {
namespace {

using OpTable = std::array<const CpuOp*, kOpKindCount>;

OpTable collect_ops() {
  OpTable table{};
  for (const auto list :
       {embedding_ops(), norm_ops(), qk_norm_ops(), linear_ops(), rope_ops(), attention_ops(), attention_backward_ops(),
        unfused_attention_ops(), latent_attention_ops(), rearrange_ops(), router_ops(), router_balance_ops(),
        dispatch_ops(), expert_linear_ops(), element_wise_ops(), dropout_ops(), loss_ops(), optimizer_ops()}) {
    for (const CpuOp& op : list) table[static_cast<size_t>(op.kind)] = &op;
  }
  return table;
}

/// A kernel that is a function of the operator and its arguments.
class FunctionKernel : public Kernel {
 public:
  FunctionKernel(const CpuOp& row, const OpInstance& op, int threads)
      : row_(row), op_(op), threads_(threads), workspace_bytes_(row.workspace ? row.workspace(op, threads) : 0) {}

  void run(const KernelArguments& arguments) override {
    ensure(thread_count() <= threads_, "the team is no larger than the cpu device was made for");
    row_.run(op_, arguments);
  }
  int64_t workspace_bytes() const override { return workspace_bytes_; }

 private:
  const CpuOp& row_;
  OpInstance op_;
  int threads_;
  int64_t workspace_bytes_;
};

class CpuDevice : public Device {
 public:
  explicit CpuDevice(int threads) : table_(collect_ops()), library_(threads) {}

  std::string_view name() const override { return "cpu"; }

  std::unique_ptr<Kernel> bind(const OpInstance& op) override {
    if (has_rounded_storage(op)) return with_rounded_storage(op, bind(widened(op)));
    const CpuOp& row = checked_row(op);
    if (row.bind) return row.bind(op, library_);
    return std::make_unique<FunctionKernel>(row, op, library_.threads());
  }

  int64_t workspace_bytes(const OpInstance& op) override {
    if (has_rounded_storage(op)) return widened_bytes(op) + workspace_bytes(widened(op));
    const CpuOp& row = checked_row(op);
    if (row.bind) return row.bound_workspace ? row.bound_workspace(op, library_) : 0;
    return row.workspace ? row.workspace(op, library_.threads()) : 0;
  }

  bool supports(OpKind kind, DType dtype) const override {
    return (dtype == DType::f32 || is_16_bit_float(dtype)) && static_cast<int>(kind) < kOpKindCount &&
           table_[static_cast<size_t>(kind)] != nullptr;
  }

 private:
  const CpuOp& checked_row(const OpInstance& op) const {
    if (!supports(op.kind, DType::f32)) {
      throw_bad_input("cpu device", fmt::format("cpu has no kernel for {}", name_of(op.kind)), "use another device");
    }
    const CpuOp& row = *table_[static_cast<size_t>(op.kind)];
    check_operands(op, row.operands);
    if (row.check) row.check(op);
    return row;
  }

  OpTable table_;
  GemmLibrary library_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(int threads) {
  if (threads < 1)
    throw_bad_input("cpu device", fmt::format("{} threads asked for", threads), "use one thread or more");
  return std::make_unique<CpuDevice>(threads);
}

}  // namespace foresail
