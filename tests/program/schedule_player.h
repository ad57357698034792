// Plays the orders of all stages of a pipeline against each other: dependencies and unit durations only, no costs, no
// communication time. What theory says about bubbles and micro-batches in flight is compared with this.
#pragma once

#include <cstdint>
#include <vector>

#include "program/schedule.h"

namespace foresail::testing {

struct Durations {
  int64_t forward = 1, backward = 1, weight_gradient = 1;
};

struct Played {
  bool finished = false;       ///< false: stages wait for each other forever
  int64_t bubble = 0;          ///< of the stage with the largest: last end - first start - busy
  std::vector<int> in_flight;  ///< by stage: most chunk activations held at once
};

enum class Buffering : uint8_t {
  unlimited,  ///< a message never waits for its receiver
  /// Before an execution takes its input, what its chunk sent before in the same direction must have been taken.
  per_chunk,
  /// An execution takes its input; before it writes, what any chunk of the stage sent before must have been taken.
  per_stage,
};

/// `outgoing_buffers` of each kind; the sender may run as many messages ahead of the receiver.
Played play(const Strategy& strategy, const std::vector<StageSchedule>& stages, const Durations& durations,
            Buffering buffering, int outgoing_buffers = 1);

}  // namespace foresail::testing
