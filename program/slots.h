// Where the slots of micro-batches in flight lie: all chunks share one range of the arena, because they are not full at the
// same time.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace foresail {

/// Sets slot_offset and carried_offset of every entry; returns the bytes of the range. A slot is taken by the forward entry
/// and given back after the last entry of its micro-batch and chunk, a carried slot from backward to weight_gradient.
int64_t place_slots(const std::vector<Chunk>& chunks, std::vector<ScheduleEntry>& entries);

}  // namespace foresail
