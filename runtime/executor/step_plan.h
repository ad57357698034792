// A step unrolled once, at construction: which calls are executed in which order, and for queues that run beside each
// other what each does and waits for.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "program/dependencies.h"
#include "program/program.h"
#include "runtime/executor/bind.h"
#include "runtime/executor/queue_engine.h"

namespace foresail {

/// A call that is executed; points into the Program.
struct ExecutedCall {
  const ScheduleEntry* entry = nullptr;
  const Call* call = nullptr;
  int32_t call_index = 0;  ///< in the list of its phase and chunk
};

/// Calls of the schedule in issue order.
std::vector<ExecutedCall> plan_calls(const Program& program);
/// Calls of the startup phase; `entry` must outlive them.
std::vector<ExecutedCall> plan_startup(const Program& program, const ScheduleEntry& entry);

bool uses_queues_besides_compute(const Program& program);

/// One item of a queue.
struct PlannedInstruction {
  int32_t call = 0;  ///< index into the planned calls
  int32_t instruction = 0;
};

struct QueuePlan {
  std::array<std::vector<PlannedInstruction>, kQueueCount> items;
  std::vector<QueueWork> work;  ///< by queue
};

/// Distributes the instructions over their queues. Beside `dependencies`, instructions that use one group or one channel
/// keep their order, whatever their queues: all members of a group must issue its collectives alike.
QueuePlan plan_queues(const std::vector<ExecutedCall>& calls, const std::vector<BoundBlock>& blocks,
                      const Dependencies& dependencies);

}  // namespace foresail
