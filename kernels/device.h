// How an operator runs: a Device binds an OpInstance once (choosing code, building library primitives) and gets a
// Kernel that the executor calls with raw pointers in the hot loop. Kernels allocate nothing when run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "ops/op.h"
#include "ops/step_inputs.h"

namespace foresail {

/// Operands of one run. Pointers are at least 64-byte aligned unless the layout's offset says otherwise.
struct KernelArguments {
  std::span<void* const> inputs;
  std::span<void* const> outputs;
  void* workspace = nullptr;  ///< at least Kernel::workspace_bytes()
  KernelContext context;
};

/// A bound operator. Not thread-safe: one call at a time.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual void run(const KernelArguments& arguments) = 0;
  virtual int64_t workspace_bytes() const { return 0; }
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string_view name() const = 0;  ///< "cpu", "reference"
  /// Throws bad_input ("cpu has no kernel for rope in f16") when the back end cannot run this operator.
  virtual std::unique_ptr<Kernel> bind(const OpInstance& op) = 0;
  /// Bytes that bind(op)->workspace_bytes() will ask for, without building anything heavy; the compiler lays them out.
  virtual int64_t workspace_bytes(const OpInstance& op) = 0;
  virtual bool supports(OpKind kind, DType dtype) const = 0;
};

/// Eigen, double, one thread: the oracle. Every op kind in f64.
std::unique_ptr<Device> make_reference_device();
/// Fused fp32 kernels, Highway + oneDNN, `threads` threads (core/parallel.h's team must be set to it).
std::unique_ptr<Device> make_cpu_device(int threads);

}  // namespace foresail
