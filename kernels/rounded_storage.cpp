#include "kernels/rounded_storage.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/float16.h"
#include "core/parallel.h"
#include "core/round_up.h"
#include "ops/op_table.h"

namespace foresail {
namespace {

constexpr int64_t kAlignment = 64, kGrain = 4096;
constexpr int64_t kNotWidened = -1;

/// Where the widened operands lie in the workspace; -1: the operand stays where it is.
struct Staging {
  std::vector<int64_t> inputs, outputs;
  int64_t bytes = 0;
};

/// The input in whose place `output` may be made: both are widened, so one copy serves them.
int64_t shared_place(const OpInstance& op, const Staging& staging, int output) {
  for (const InPlace& pair : info(op.kind).in_place) {
    const auto input = static_cast<size_t>(pair.input);
    if (pair.output != output || input >= op.inputs.size() || staging.inputs[input] == kNotWidened) continue;
    if (op.inputs[input].elements() == op.outputs[static_cast<size_t>(output)].elements()) return staging.inputs[input];
  }
  return kNotWidened;
}

Staging stage(const OpInstance& op) {
  Staging staging;
  const auto take = [&](const TensorType& type) {
    if (!is_16_bit_float(type.dtype)) return kNotWidened;
    const int64_t at = staging.bytes;
    staging.bytes += round_up(type.elements() * size_of(DType::f32), kAlignment);
    return at;
  };
  for (const TensorType& type : op.inputs) staging.inputs.push_back(take(type));
  for (int i = 0; i < static_cast<int>(op.outputs.size()); ++i) {
    const TensorType& type = op.outputs[static_cast<size_t>(i)];
    const int64_t shared = is_16_bit_float(type.dtype) ? shared_place(op, staging, i) : kNotWidened;
    const bool taken = std::find(staging.outputs.begin(), staging.outputs.end(), shared) != staging.outputs.end();
    staging.outputs.push_back(shared != kNotWidened && !taken ? shared : take(type));
  }
  return staging;
}

class RoundedKernel final : public Kernel {
 public:
  RoundedKernel(const OpInstance& op, std::unique_ptr<Kernel> inner)
      : op_(op),
        staging_(stage(op)),
        accumulating_(info(op.kind).accumulating_outputs),
        inner_(std::move(inner)),
        inputs_(op.inputs.size()),
        outputs_(op.outputs.size()) {}

  int64_t workspace_bytes() const override { return staging_.bytes + inner_->workspace_bytes(); }

  void run(const KernelArguments& arguments) override {
    auto* const workspace = static_cast<std::byte*>(arguments.workspace);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      inputs_[i] = place(arguments.inputs[i], workspace, staging_.inputs[i]);
      if (inputs_[i] != arguments.inputs[i]) load(arguments.inputs[i], op_.inputs[i], inputs_[i]);
    }
    for (size_t i = 0; i < outputs_.size(); ++i) {
      outputs_[i] = place(arguments.outputs[i], workspace, staging_.outputs[i]);
      const bool is_read = (accumulating_ >> i & 1u) != 0;
      if (is_read && outputs_[i] != arguments.outputs[i]) load(arguments.outputs[i], op_.outputs[i], outputs_[i]);
    }
    inner_->run({inputs_, outputs_, workspace + staging_.bytes, arguments.context});
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (outputs_[i] != arguments.outputs[i]) store(outputs_[i], op_.outputs[i], arguments.outputs[i]);
    }
  }

 private:
  static void* place(void* own, std::byte* workspace, int64_t at) { return at == kNotWidened ? own : workspace + at; }

  static void load(const void* from, const TensorType& type, void* to) {
    parallel_ranges(type.elements(), kGrain, [&](int64_t begin, int64_t end, int) {
      widen(static_cast<const std::byte*>(from) + begin * size_of(type.dtype), type.dtype,
            static_cast<float*>(to) + begin, end - begin);
    });
  }

  static void store(const void* from, const TensorType& type, void* to) {
    parallel_ranges(type.elements(), kGrain, [&](int64_t begin, int64_t end, int) {
      round_to_16_bit(static_cast<const float*>(from) + begin,
                      static_cast<std::byte*>(to) + begin * size_of(type.dtype), type.dtype, end - begin);
    });
  }

  OpInstance op_;
  Staging staging_;
  uint32_t accumulating_;
  std::unique_ptr<Kernel> inner_;
  std::vector<void*> inputs_, outputs_;
};

}  // namespace

int64_t widened_bytes(const OpInstance& op) { return stage(op).bytes; }

std::unique_ptr<Kernel> with_rounded_storage(const OpInstance& op, std::unique_ptr<Kernel> inner) {
  return std::make_unique<RoundedKernel>(op, std::move(inner));
}

}  // namespace foresail
