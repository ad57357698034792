// What joins the queues of a rank: which executed instructions of a step must wait for earlier ones on other queues.
// Derived from the bytes that instructions touch, so that nothing in a Program can contradict them.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace foresail {

inline constexpr size_t kQueueCount = static_cast<size_t>(Queue::host_copy) + 1;

/// Executed instructions are numbered from 0 in issue order: entries of Program::schedule, calls of each entry that it
/// does not skip, instructions of each call's block. The startup phase is not counted: it runs before the step.
struct Dependency {
  int64_t waiting = 0;    ///< number of the instruction that must not start yet
  int64_t awaited = 0;    ///< number of the earlier one, on another queue, that must have finished
  Queue awaited_queue{};  ///< where `awaited` runs
};

/// Together with the order of each queue these order every two instructions of which one writes bytes that the other
/// touches. A buffer with a shard stride counts with the shares of all shard ranks, so that all ranks wait alike. A send
/// reads its operand once more at its channel's next wait_send, which also comes after the send itself. What all queues
/// must do before the next step is not listed: a step ends when every queue has run empty.
struct Dependencies {
  /// Ascending by `waiting`. Of every other queue only the latest instruction, and not what the waiting queue has waited
  /// for before.
  std::vector<Dependency> waits;
};

/// Empty for a Program that uses one queue. Time grows with the executed instructions (about 10 million a second), memory
/// with the distinct buffers of those that are not on the compute queue and with the result.
Dependencies dependencies_of(const Program& program);

}  // namespace foresail
