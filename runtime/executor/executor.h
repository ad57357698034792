// Walks a Program: kernels from the op table's back end, collectives from the Communicator, no decisions of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "kernels/device.h"
#include "ops/step_inputs.h"
#include "program/program.h"
#include "runtime/executor/arena.h"

namespace foresail {

/// One executed instruction. Seconds since the start of the step.
struct TraceEvent {
  Phase phase{};
  int32_t call = 0;         ///< index into Program::calls[phase]
  int32_t instruction = 0;  ///< index into the block
  int32_t micro_batch = -1;
  double begin_seconds = 0, end_seconds = 0;
};

/// The metrics record as the last step left it.
struct StepMetrics {
  double loss = 0;         ///< mean over the valid tokens of the global batch
  double grad_norm = 0;    ///< before clipping
  double clip_factor = 0;  ///< 0: the step was skipped because the norm was not finite
};

class Executor {
 public:
  /// Binds every instruction once. `communicator` must have mesh_groups(program.mesh) as its groups (may be null for a
  /// mesh of one rank). Throws bad_input when the back end lacks a kernel or a kernel wants more workspace than the
  /// Program gives it (naming op and bytes). All references must outlive the executor.
  Executor(const Program& program, Device& device, Communicator* communicator, Arena& arena, int world_rank);
  ~Executor();

  void startup();  ///< runs the startup phase: constants
  StepInputs& step_inputs();
  /// This rank's token ids of one micro-batch, i32 [rows]; empty if the stage does not read them.
  std::span<int32_t> tokens(int64_t micro_batch);
  std::span<int32_t> targets(int64_t micro_batch);

  /// One execution of the schedule.
  void step();
  StepMetrics metrics() const;

  /// Records a TraceEvent per instruction from now on (allocated here, not in the step).
  void enable_trace();
  const std::vector<TraceEvent>& trace() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace foresail
