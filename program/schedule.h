// The order of micro-batches on a pipeline stage. A stage runs `virtual_stages` model chunks; chunk c of stage s is virtual
// stage c * pp + s, except in ZB-V, where the second chunk runs back up: 2 * pp - 1 - s. The orders themselves are in
// schedule_orders.cpp, one function per schedule.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"
#include "spec/strategy.h"

namespace foresail {

struct VirtualPlace {
  int32_t stage = 0, chunk = 0;
  bool operator==(const VirtualPlace&) const = default;
};

/// Where a virtual stage lies, and back.
VirtualPlace place_of(const Strategy& strategy, int64_t virtual_stage);
int64_t virtual_stage_of(const Strategy& strategy, const VirtualPlace& place);
/// pp x virtual_stages.
int64_t virtual_stage_count(const Strategy& strategy);
/// Whether an entry of this phase runs for one micro-batch; the other phases run once in a step.
bool of_micro_batch(Phase phase);
/// Whether backward is split into input and weight gradients.
bool splits_backward(ScheduleKind schedule);
/// Buffers from which a chunk sends in each direction. With one, a stage that is an execution ahead of its neighbour waits
/// until the neighbour has received; schedules whose bubble would grow by that have two.
int64_t outgoing_buffers(ScheduleKind schedule);

/// Whether the strategy's schedule runs that many chunks per stage and micro-batches; if not, `why` (may be null) says
/// what it accepts.
bool schedule_fits(const Strategy& strategy, int64_t micro_batches, std::string* why = nullptr);

/// forward, backward and weight_gradient entries with their slots. Slots are reused as early as they are free.
struct StageSchedule {
  std::vector<ScheduleEntry> entries;
  std::vector<int32_t> slots, carried_slots;  ///< by chunk: how many are needed
};

/// The training step. Where a virtual stage hands over to the next one on the same rank (the turn of ZB-V, pp = 1), the two
/// entries of a micro-batch are neighbours: hidden states and their gradient pass through scratch.
/// Takes time in proportion to the entries. Throws (ensure) unless `schedule_fits`.
StageSchedule training_schedule(const Strategy& strategy, int64_t stage, int64_t micro_batches);

/// Forward only (evaluation): one slot per chunk.
StageSchedule forward_schedule(const Strategy& strategy, int64_t stage, int64_t micro_batches);

}  // namespace foresail
