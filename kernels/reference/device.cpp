// The oracle: one kernel per kind of operator, in double, on one thread. Other back ends are tested against it, and it
// is tested by finite differences.
#include <array>
#include <memory>
#include <string>

#include "core/error.h"
#include "kernels/reference/reference.h"

namespace foresail {
namespace reference {
namespace {

using Table = std::array<const Entry*, kOpKindCount>;

Table make_table() {
  Table table{};
  for (const auto kernels :
       {embedding_kernels(), norm_kernels(), linear_kernels(), rope_kernels(), attention_kernels(),
        unfused_attention_kernels(), ring_attention_kernels(), latent_attention_kernels(), rearrange_kernels(),
        router_kernels(), expert_kernels(), element_wise_kernels(), loss_kernels(), optimizer_kernels()}) {
    for (const Entry& entry : kernels) table[static_cast<int>(entry.kind)] = &entry;
  }
  return table;
}

class ReferenceKernel final : public Kernel {
 public:
  ReferenceKernel(const OpInstance& op, const Entry& entry) : op_(op), entry_(entry) {}
  void run(const KernelArguments& arguments) override { entry_.run(Run{op_, arguments}); }
  int64_t workspace_bytes() const override {
    return entry_.workspace_rows * op_.attributes.sequence_length * static_cast<int64_t>(sizeof(double));
  }

 private:
  OpInstance op_;
  const Entry& entry_;
};

class ReferenceDevice final : public Device {
 public:
  std::string_view name() const override { return "reference"; }

  std::unique_ptr<Kernel> bind(const OpInstance& op) override {
    const Entry& entry = entry_of(op);
    check_operands(op, entry.operands);
    if (entry.check != nullptr) entry.check(Run{op, KernelArguments{}});
    return std::make_unique<ReferenceKernel>(op, entry);
  }

  int64_t workspace_bytes(const OpInstance& op) override { return ReferenceKernel(op, entry_of(op)).workspace_bytes(); }

  bool supports(OpKind kind, DType dtype) const override {
    return kind < OpKind::count_ && table_[static_cast<int>(kind)] != nullptr && dtype == DType::f64;
  }

 private:
  const Entry& entry_of(const OpInstance& op) const {
    if (op.kind >= OpKind::count_ || table_[static_cast<int>(op.kind)] == nullptr) {
      throw_bad_input("reference device: op kind " + std::to_string(static_cast<int>(op.kind)), "it has no kernel",
                      "use an operator of ops/op.h");
    }
    return *table_[static_cast<int>(op.kind)];
  }

  Table table_ = make_table();
};

}  // namespace
}  // namespace reference

std::unique_ptr<Device> make_reference_device() { return std::make_unique<reference::ReferenceDevice>(); }

}  // namespace foresail
