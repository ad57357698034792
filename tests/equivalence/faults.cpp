#include "tests/equivalence/faults.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "core/error.h"
#include "tests/equivalence/generator/factors.h"
#include "tests/program/small_models.h"

namespace foresail::testing {
namespace {

/// Runs something beside every kernel of one kind.
class TamperedDevice final : public Device {
 public:
  using Before = std::function<void(KernelContext&)>;
  TamperedDevice(std::unique_ptr<Device> device, OpKind kind, Before before, Tamper after)
      : device_(std::move(device)), kind_(kind), before_(std::move(before)), after_(std::move(after)) {}
  std::string_view name() const override { return device_->name(); }
  int64_t workspace_bytes(const OpInstance& op) override { return device_->workspace_bytes(op); }
  bool supports(OpKind kind, DType dtype) const override { return device_->supports(kind, dtype); }
  std::unique_ptr<Kernel> bind(const OpInstance& op) override {
    auto kernel = device_->bind(op);
    if (op.kind != kind_) return kernel;
    return std::make_unique<TamperedKernel>(std::move(kernel), op, before_, after_);
  }

 private:
  class TamperedKernel final : public Kernel {
   public:
    TamperedKernel(std::unique_ptr<Kernel> kernel, OpInstance op, Before before, Tamper after)
        : kernel_(std::move(kernel)), op_(std::move(op)), before_(std::move(before)), after_(std::move(after)) {}
    int64_t workspace_bytes() const override { return kernel_->workspace_bytes(); }
    void run(const KernelArguments& arguments) override {
      KernelArguments changed = arguments;
      if (before_) before_(changed.context);
      kernel_->run(changed);
      if (after_) after_(op_, changed);
    }

   private:
    std::unique_ptr<Kernel> kernel_;
    OpInstance op_;
    Before before_;
    Tamper after_;
  };

  std::unique_ptr<Device> device_;
  OpKind kind_;
  Before before_;
  Tamper after_;
};

auto tampered(OpKind kind, TamperedDevice::Before before, Tamper after) {
  return [kind, before = std::move(before),
          after = std::move(after)](std::unique_ptr<Device> device) -> std::unique_ptr<Device> {
    return std::make_unique<TamperedDevice>(std::move(device), kind, before, after);
  };
}

bool is_op(const Instruction& instruction, OpKind kind) {
  return instruction.kind == InstructionKind::op && instruction.op == kind;
}

std::pair<Block*, size_t> find(Program& program, const Matches& matches, int nth) {
  for (Block& block : program.blocks) {
    for (size_t i = 0; i < block.instructions.size(); ++i) {
      if (matches(block, block.instructions[i]) && nth-- == 0) return {&block, i};
    }
  }
  return {nullptr, 0};
}

}  // namespace

Matches in_block(const std::string& name, OpKind kind) {
  return [=](const Block& block, const Instruction& instruction) {
    return block.name == name && is_op(instruction, kind);
  };
}

Matches in_block(const std::string& name, InstructionKind kind, GroupKind group) {
  return [=](const Block& block, const Instruction& instruction) {
    return block.name == name && instruction.kind == kind && instruction.group == group;
  };
}

Matches replayed(OpKind kind) {
  return [=](const Block&, const Instruction& instruction) {
    return instruction.time == TimeKind::recompute && is_op(instruction, kind);
  };
}

void remove(Program& program, const Matches& matches, int nth) {
  const auto [block, at] = find(program, matches, nth);
  if (block != nullptr) block->instructions.erase(block->instructions.begin() + static_cast<long>(at));
}

void repeat(Program& program, const Matches& matches) {
  const auto [block, at] = find(program, matches, 0);
  if (block == nullptr) return;
  const Instruction twice = block->instructions[at];
  block->instructions.push_back(twice);
}

void change(Program& program, const Matches& matches, const std::function<void(Instruction&)>& edit) {
  for (Block& block : program.blocks) {
    for (Instruction& instruction : block.instructions) {
      if (matches(block, instruction)) edit(instruction);
    }
  }
}

std::vector<size_t> calls_named(const Program& program, Phase phase, size_t chunk, const std::string& block) {
  std::vector<size_t> found;
  const auto& calls = program.calls[static_cast<size_t>(phase)].at(chunk);
  for (size_t i = 0; i < calls.size(); ++i) {
    if (program.blocks[static_cast<size_t>(calls[i].block)].name == block) found.push_back(i);
  }
  return found;
}

void remove_call(Program& program, Phase phase, size_t chunk, size_t at) {
  auto& calls = program.calls[static_cast<size_t>(phase)].at(chunk);
  calls.erase(calls.begin() + static_cast<long>(at));
}

ScheduleEntry& entry_of(Program& program, Phase phase, int32_t chunk, int32_t micro_batch) {
  const auto found = std::find_if(program.schedule.begin(), program.schedule.end(), [&](const ScheduleEntry& entry) {
    return entry.phase == phase && entry.chunk == chunk && entry.micro_batch == micro_batch;
  });
  ensure(found != program.schedule.end(), "a fault is planted where there is something to change");
  return *found;
}

Fault fault_named(std::string name) {
  Fault fault;
  fault.name = std::move(name);
  return fault;
}

Fault in_program(std::string name, std::function<void(Program&, const MeshCoordinate&)> edit) {
  Fault fault = fault_named(std::move(name));
  fault.program = std::move(edit);
  return fault;
}

Fault in_context(std::string name, OpKind kind, std::function<void(KernelContext&)> skew) {
  Fault fault = fault_named(std::move(name));
  fault.device = tampered(kind, std::move(skew), {});
  return fault;
}

Fault after_kernel(std::string name, OpKind kind, Tamper tamper) {
  Fault fault = fault_named(std::move(name));
  fault.device = tampered(kind, {}, std::move(tamper));
  return fault;
}

std::function<std::unique_ptr<Device>(std::unique_ptr<Device>)> slowed_down(OpKind kind, int milliseconds) {
  return tampered(kind, [=](KernelContext&) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); },
                  {});
}

Experiment case_of(const std::string& device, const std::string& model, const std::string& strategy) {
  Experiment experiment;
  experiment.model = small_model(model);
  experiment.strategy = parse_strategy(strategy).strategy;
  experiment.job = suite_job(device, experiment.strategy.ragged_batch ? 11 : 12);
  experiment.device = device;
  return experiment;
}

Task FaultList::task(const std::string& model, const std::string& strategy, Fault fault) const {
  Task task;
  task.experiment = case_of(device_, model, strategy);
  task.name = fault.name + ": " + name_of(task.experiment);
  task.fault = std::move(fault);
  return task;
}

void FaultList::add(const std::string& model, const std::string& strategy, Fault fault) {
  faults.push_back(task(model, strategy, std::move(fault)));
}

void FaultList::add_harmless(const std::string& model, const std::string& strategy, Fault change) {
  harmless.push_back(task(model, strategy, std::move(change)));
}

FaultList planted_faults(const std::string& device) {
  FaultList list(device);
  plant_tensor_faults(list);
  plant_optimizer_faults(list);
  plant_data_faults(list);
  plant_accumulation_faults(list);
  plant_zero_faults(list);
  plant_overlap_faults(list);
  plant_pipeline_faults(list);
  plant_recompute_faults(list);
  plant_context_faults(list);
  plant_random_number_faults(list);
  plant_expert_faults(list);
  return list;
}

}  // namespace foresail::testing
