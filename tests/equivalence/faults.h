// Faults that others shipped for years, planted into compiled Programs, schedules, step inputs, data, dependencies or
// kernels: the suite must notice every one of them. What the tools below share; the faults are in faults_*.cpp.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/equivalence/suite.h"

namespace foresail::testing {

/// Where instructions, calls or entries are changed.
using Matches = std::function<bool(const Block&, const Instruction&)>;

Matches in_block(const std::string& name, OpKind kind);
Matches in_block(const std::string& name, InstructionKind kind, GroupKind group);
/// The same operator when backward replays it.
Matches replayed(OpKind kind);

/// Takes the `nth` instruction that matches out of its block; nothing if there is none (another stage has it).
void remove(Program& program, const Matches& matches, int nth = 0);
void repeat(Program& program, const Matches& matches);
void change(Program& program, const Matches& matches, const std::function<void(Instruction&)>& edit);

/// The calls of a phase and chunk whose block has this name.
std::vector<size_t> calls_named(const Program& program, Phase phase, size_t chunk, const std::string& block);
void remove_call(Program& program, Phase phase, size_t chunk, size_t at);

/// The entry of a micro-batch.
ScheduleEntry& entry_of(Program& program, Phase phase, int32_t chunk, int32_t micro_batch);

// ---- Faults of each kind

Fault fault_named(std::string name);
Fault in_program(std::string name, std::function<void(Program&, const MeshCoordinate&)> edit);

/// Kernels of a kind that see another context than they should.
Fault in_context(std::string name, OpKind kind, std::function<void(KernelContext&)> skew);

/// Kernels of a kind whose outputs are changed after they ran.
using Tamper = std::function<void(const OpInstance&, const KernelArguments&)>;
Fault after_kernel(std::string name, OpKind kind, Tamper tamper);

/// A device on which kernels of a kind take `milliseconds` longer: gives queues time to run away from each other.
std::function<std::unique_ptr<Device>(std::unique_ptr<Device>)> slowed_down(OpKind kind, int milliseconds);

// ---- Lists

/// The honest case, named like "llama"; the suite's job, 11 sequences for ragged strategies.
Experiment case_of(const std::string& device, const std::string& model, const std::string& strategy);

class FaultList {
 public:
  explicit FaultList(std::string device) : device_(std::move(device)) {}
  void add(const std::string& model, const std::string& strategy, Fault fault);
  /// A change that must not matter.
  void add_harmless(const std::string& model, const std::string& strategy, Fault change);

  const std::string& device() const { return device_; }

  std::vector<Task> faults, harmless;

 private:
  Task task(const std::string& model, const std::string& strategy, Fault fault) const;

  std::string device_;
};

void plant_tensor_faults(FaultList& list);
void plant_optimizer_faults(FaultList& list);
void plant_data_faults(FaultList& list);
void plant_accumulation_faults(FaultList& list);
void plant_zero_faults(FaultList& list);
void plant_overlap_faults(FaultList& list);
void plant_pipeline_faults(FaultList& list);
void plant_recompute_faults(FaultList& list);
void plant_context_faults(FaultList& list);
void plant_random_number_faults(FaultList& list);
void plant_expert_faults(FaultList& list);

FaultList planted_faults(const std::string& device);

}  // namespace foresail::testing
