// Faults that others shipped for years, planted into compiled Programs, step inputs or kernels: the suite must notice
// every one of them.
#include <algorithm>
#include <utility>

#include "core/error.h"
#include "tests/equivalence/suite.h"
#include "tests/program/small_models.h"

namespace foresail::testing {
namespace {

using Matches = std::function<bool(const Block&, const Instruction&)>;

bool is_op(const Instruction& instruction, OpKind kind) {
  return instruction.kind == InstructionKind::op && instruction.op == kind;
}

bool reduces(const Instruction& instruction, GroupKind group) {
  return instruction.kind == InstructionKind::all_reduce && instruction.group == group;
}

/// The block and position of the `nth` instruction that matches.
std::pair<Block*, size_t> find(Program& program, const Matches& matches, int nth = 0) {
  for (Block& block : program.blocks) {
    for (size_t i = 0; i < block.instructions.size(); ++i) {
      if (matches(block, block.instructions[i]) && nth-- == 0) return {&block, i};
    }
  }
  return {nullptr, 0};
}

void remove(Program& program, const Matches& matches, int nth = 0) {
  const auto [block, at] = find(program, matches, nth);
  if (block != nullptr) block->instructions.erase(block->instructions.begin() + static_cast<long>(at));
}

void change(Program& program, const Matches& matches, const std::function<void(Instruction&)>& edit) {
  for (Block& block : program.blocks) {
    for (Instruction& instruction : block.instructions) {
      if (matches(block, instruction)) edit(instruction);
    }
  }
}

Matches in_block(const std::string& name, OpKind kind) {
  return [=](const Block& block, const Instruction& instruction) {
    return block.name == name && is_op(instruction, kind);
  };
}

Matches reduction_in(const std::string& name, GroupKind group) {
  return [=](const Block& block, const Instruction& instruction) {
    return block.name == name && reduces(instruction, group);
  };
}

/// Kernels that see another context than they should.
class SkewedDevice final : public Device {
 public:
  using Skew = std::function<void(KernelContext&)>;
  SkewedDevice(std::unique_ptr<Device> device, OpKind kind, Skew skew)
      : device_(std::move(device)), kind_(kind), skew_(std::move(skew)) {}
  std::string_view name() const override { return device_->name(); }
  int64_t workspace_bytes(const OpInstance& op) override { return device_->workspace_bytes(op); }
  bool supports(OpKind kind, DType dtype) const override { return device_->supports(kind, dtype); }
  std::unique_ptr<Kernel> bind(const OpInstance& op) override {
    auto kernel = device_->bind(op);
    if (op.kind != kind_) return kernel;
    return std::make_unique<SkewedKernel>(std::move(kernel), skew_);
  }

 private:
  class SkewedKernel final : public Kernel {
   public:
    SkewedKernel(std::unique_ptr<Kernel> kernel, Skew skew) : kernel_(std::move(kernel)), skew_(std::move(skew)) {}
    int64_t workspace_bytes() const override { return kernel_->workspace_bytes(); }
    void run(const KernelArguments& arguments) override {
      KernelArguments skewed = arguments;
      skew_(skewed.context);
      kernel_->run(skewed);
    }

   private:
    std::unique_ptr<Kernel> kernel_;
    Skew skew_;
  };

  std::unique_ptr<Device> device_;
  OpKind kind_;
  Skew skew_;
};

Fault in_program(std::string name, std::function<void(Program&, const MeshCoordinate&)> edit) {
  return {std::move(name), std::move(edit), {}, {}};
}

Fault in_kernel(std::string name, OpKind kind, SkewedDevice::Skew skew) {
  Fault fault{std::move(name), {}, {}, {}};
  fault.device = [kind, skew](std::unique_ptr<Device> device) -> std::unique_ptr<Device> {
    return std::make_unique<SkewedDevice>(std::move(device), kind, skew);
  };
  return fault;
}

SuiteCase where(const std::string& device, const ModelSpec& model, const std::string& strategy) {
  Experiment experiment = generated_cases(device).front().experiment;
  experiment.model = model;
  experiment.strategy = parse_strategy(strategy).strategy;
  experiment.fused_kernels = true;
  experiment.unfused_attention = false;
  return {model.name + ", " + strategy, experiment};
}

using Faults = std::vector<PlantedFault>;

void plant_reduction_faults(const std::string& device, Faults& faults) {
  const auto add = [&](const ModelSpec& model, const std::string& strategy, Fault fault) {
    faults.push_back({std::move(fault), where(device, model, strategy)});
  };
  add(small_llama(), "tp=2,micro_batch=2",
      in_program(
          "norm gradients unreduced over tp: the all-reduce before a norm's backward is dropped",
          [](Program& p, const MeshCoordinate&) { remove(p, reduction_in("block.backward", GroupKind::tensor), 1); }));
  add(small_qwen3(), "tp=2,micro_batch=2",
      in_program("q/k norm gradients not summed over tp", [](Program& p, const MeshCoordinate&) {
        remove(p, reduction_in("block.tensor_reduce", GroupKind::tensor));
      }));
  add(small_llama(), "tp=2,micro_batch=2",
      in_program("row-parallel product not summed over tp in forward", [](Program& p, const MeshCoordinate&) {
        remove(p, reduction_in("block.forward", GroupKind::tensor));
      }));
  add(small_llama(), "dp=2,micro_batch=2",
      in_program("gradients not reduced over dp",
                 [](Program& p, const MeshCoordinate&) { remove(p, reduction_in("data_reduce", GroupKind::data)); }));
  add(small_gpt2(), "pp=2,micro_batch=2",
      in_program(
          "tied gradient counted once: the embedding's copies are not summed",
          [](Program& p, const MeshCoordinate&) { remove(p, reduction_in("tied_reduce", GroupKind::embedding)); }));
  add(small_llama(), "tp=2,micro_batch=2",
      in_program("gradient of the head's input not summed over tp",
                 [](Program& p, const MeshCoordinate&) { remove(p, reduction_in("head", GroupKind::tensor)); }));
}

void plant_norm_and_optimizer_faults(const std::string& device, Faults& faults) {
  const auto add = [&](const std::string& strategy, Fault fault) {
    faults.push_back({std::move(fault), where(device, small_llama(), strategy)});
  };
  add("tp=2,micro_batch=2", in_program("tensor missing from the clip norm", [](Program& p, const MeshCoordinate&) {
        remove(p, in_block("head.norm", OpKind::squared_norm));
      }));
  add("tp=2,micro_batch=2", in_program("tensor doubled in the clip norm", [](Program& p, const MeshCoordinate&) {
        const auto [block, at] = find(p, in_block("block.norm", OpKind::squared_norm));
        const Instruction twice = block->instructions[at];
        block->instructions.push_back(twice);
      }));
  add("tp=2,micro_batch=2",
      in_program("replicated norms counted by every tp rank", [](Program& p, const MeshCoordinate&) {
        change(p, in_block("block.norm", OpKind::squared_norm),
               [](Instruction& i) { i.attributes.count_rule = CountRule::every_tensor_rank; });
      }));
  add("tp=2,micro_batch=2", in_program("decay on one rank's norms", [](Program& p, const MeshCoordinate& place) {
        if (place.tp == 1) {
          change(p, in_block("block.update", OpKind::adamw), [](Instruction& i) { i.attributes.decay = true; });
        }
      }));
  add("dp=2,micro_batch=2", in_program("gradients not zeroed before a step", [](Program& p, const MeshCoordinate&) {
        remove(p, in_block("begin_step", OpKind::fill_zero), 1);
      }));
  Fault mean{"sum for mean: every data rank divides by its own tokens", {}, {}, {}};
  mean.step_inputs = [](StepInputs& inputs, const MeshCoordinate&) { inputs.inverse_valid_tokens *= 2; };
  add("dp=2,micro_batch=2", mean);
}

void plant_schedule_and_shard_faults(const std::string& device, Faults& faults) {
  const auto add = [&](const ModelSpec& model, const std::string& strategy, Fault fault) {
    faults.push_back({std::move(fault), where(device, model, strategy)});
  };
  add(small_llama(), "dp=2,micro_batch=2",
      in_program("micro-batch counted twice, another never", [](Program& p, const MeshCoordinate&) {
        for (ScheduleEntry& entry : p.schedule) {
          if (entry.micro_batch == 1) entry.micro_batch = 0;
        }
      }));
  add(small_llama(), "micro_batch=2,recompute=full",
      in_program("stale recompute: a replayed operator is left out", [](Program& p, const MeshCoordinate&) {
        remove(p, [](const Block& block, const Instruction& instruction) {
          return block.name == "block.backward" && instruction.time == TimeKind::recompute &&
                 is_op(instruction, OpKind::swiglu);
        });
      }));
  add(small_llama(), "tp=2,micro_batch=2",
      in_program("shifted shard: one rank's weight begins a row late", [](Program& p, const MeshCoordinate& place) {
        if (place.tp != 1) return;
        for (Block& block : p.blocks) {
          for (Buffer& buffer : block.buffers) {
            if (block.name == "block.forward" && buffer.name == "attention_out") {
              buffer.offset += buffer.type.shape[1] * size_of(buffer.type.dtype);
            }
          }
        }
      }));
  add(small_llama(), "tp=2,micro_batch=2",
      in_program("padded vocabulary column not masked", [](Program& p, const MeshCoordinate&) {
        change(
            p, [](const Block& block, const Instruction&) { return block.name == "head"; },
            [](Instruction& i) { i.attributes.vocabulary += 1; });
      }));
  add(small_llama(), "pp=2,micro_batch=1",
      in_program("gradient of another micro-batch: a slot is mixed up", [](Program& p, const MeshCoordinate& place) {
        if (place.pp != 0) return;
        for (ScheduleEntry& entry : p.schedule) {
          if (entry.phase == Phase::backward && entry.micro_batch == 3) entry.slot = 1 - entry.slot;
        }
      }));
}

void plant_random_number_faults(const std::string& device, Faults& faults) {
  const auto add = [&](const std::string& strategy, Fault fault) {
    faults.push_back({std::move(fault), where(device, small_gpt2(), strategy)});
  };
  add("dp=2,micro_batch=2", in_kernel("dropout keyed by the local row instead of the global one", OpKind::dropout,
                                      [](KernelContext& context) { context.first_row = 0; }));
  add("tp=2,micro_batch=2", in_kernel("attention dropout keyed by the local head", OpKind::attention,
                                      [](KernelContext& context) { context.tensor_rank = 0; }));
  add("pp=2,micro_batch=2", in_kernel("dropout keyed by the same layer everywhere", OpKind::dropout,
                                      [](KernelContext& context) { context.layer = 0; }));
}

}  // namespace

std::vector<PlantedFault> planted_faults(const std::string& device) {
  Faults faults;
  plant_reduction_faults(device, faults);
  plant_norm_and_optimizer_faults(device, faults);
  plant_schedule_and_shard_faults(device, faults);
  plant_random_number_faults(device, faults);
  return faults;
}

}  // namespace foresail::testing
