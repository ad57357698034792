// Where the slots of micro-batches in flight lie: all chunks share one range of the arena, because they are not full at the
// same time.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "program/program.h"

namespace foresail {

/// Scratch that an execution of a list needs, by phase and chunk.
using ListScratch = std::map<std::pair<Phase, int32_t>, int64_t>;

/// Sets the offsets of every entry; returns the bytes of the range. A slot is taken by forward and given back after
/// backward, its delayed part after weight_gradient; a carried slot is taken from backward to weight_gradient, scratch for
/// one entry.
int64_t place_slots(const std::vector<Chunk>& chunks, const ListScratch& scratch, std::vector<ScheduleEntry>& entries);

/// The largest sum of slots and their parts that are taken at once.
int64_t kept_bytes(const Program& program);

}  // namespace foresail
