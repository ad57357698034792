// A Program written by hand that keeps all four queues of a rank busy at once: a chain of "layers" on the compute queue,
// whose gradients are reduced on the bulk queue, hidden values shifted around the context group inline, and handed over to
// the same rank on the pipeline queue. Every value depends on the order of additions and on fresh operands.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "kernels/device.h"
#include "program/program.h"
#include "runtime/executor/executor.h"

namespace foresail::testing {

struct OverlapSizes {
  int32_t layers = 4;
  int64_t micro_batches = 2;
  int64_t elements = 48;  ///< of every buffer; a multiple of the ranks
};

/// All numbers f64. Layers share one set of scratch buffers, so that queues must wait for readers as well as for writers.
Program overlap_program(const Mesh& mesh, const OverlapSizes& sizes = {});

/// Arena after `steps` steps from numbers that depend on the rank alone. Collective over the communicator, whose groups
/// are created. `queue_mode`, if given, gets the executor's mode.
std::vector<std::byte> run_overlap(const Program& program, Communicator& communicator, Device& device, int steps,
                                   const ExecutorOptions& options, QueueMode* queue_mode = nullptr);

/// A device that adds and copies f64; its kernels call `before` and `after` with their number in the order of binding.
class HookedDevice final : public Device {
 public:
  std::function<void(int kernel)> before, after;

  std::string_view name() const override { return "hooked"; }
  bool supports(OpKind kind, DType dtype) const override {
    return (kind == OpKind::add || kind == OpKind::copy) && dtype == DType::f64;
  }
  int64_t workspace_bytes(const OpInstance&) override { return 0; }
  std::unique_ptr<Kernel> bind(const OpInstance& op) override;

 private:
  int bound_ = 0;
};

}  // namespace foresail::testing
