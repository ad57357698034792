// Walks a Program: kernels from the op table's back end, collectives from the Communicator, no decisions of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "kernels/device.h"
#include "ops/step_inputs.h"
#include "program/dependencies.h"
#include "program/program.h"
#include "runtime/executor/arena.h"

namespace foresail {

/// One executed instruction. Seconds since the start of the step.
struct TraceEvent {
  Phase phase{};
  int32_t chunk = 0;
  int32_t call = 0;         ///< index into Program::calls[phase][chunk]
  int32_t instruction = 0;  ///< index into the block
  Queue queue = Queue::compute;
  int32_t micro_batch = -1;
  double begin_seconds = 0, end_seconds = 0;
};

/// The metrics record as the last step left it.
struct StepMetrics {
  double loss = 0;            ///< mean over the valid tokens of the global batch
  double auxiliary_loss = 0;  ///< of routers
  double overflow = 0;        ///< rows for experts that found no room
  double grad_norm = 0;       ///< before clipping
  double clip_factor = 0;     ///< 0: the update was left out because the norm was not finite or rows overflowed
};

/// How the queues of a Program are executed; both give the same bits.
enum class QueueMode : uint8_t {
  serial,      ///< everything in issue order on the calling thread
  concurrent,  ///< compute on the calling thread, every other queue on a thread of its own
};

struct ExecutorOptions {
  /// For debugging: serial even if the Program uses queues besides compute.
  bool serialise_queues = false;
  /// What queues wait for, in place of dependencies_of(program): tests take one away.
  std::optional<Dependencies> dependencies;
};

class Executor {
 public:
  /// Binds every instruction once. `communicator` must have mesh_groups(program.mesh) as its groups (may be null for a
  /// mesh of one rank). Queues run concurrently if the Program uses one besides compute. Throws bad_input when the back
  /// end lacks a kernel or a kernel wants more workspace than the Program gives it (naming op and bytes);
  /// environment_failed when queues are to run concurrently and the communicator does not allow that. All references must
  /// outlive the executor.
  Executor(const Program& program, Device& device, Communicator* communicator, Arena& arena, int world_rank,
           const ExecutorOptions& options = {});
  ~Executor();

  QueueMode queue_mode() const;

  void startup();  ///< runs the startup phase: constants
  StepInputs& step_inputs();
  /// This rank's token ids of one micro-batch, i32 [rows]; empty if the stage does not read them.
  std::span<int32_t> tokens(int64_t micro_batch);
  std::span<int32_t> targets(int64_t micro_batch);

  /// One execution of the schedule; all queues have run empty when it returns. What an instruction of any queue throws is
  /// thrown from here.
  void step();
  StepMetrics metrics() const;

  /// Records a TraceEvent per instruction of a step from now on (allocated here, not in the step), in the order in which
  /// they began.
  void enable_trace();
  const std::vector<TraceEvent>& trace() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace foresail
