// One function per pipeline schedule: what a stage executes, in order, as (phase, chunk, micro-batch). Slots and the marks of
// last executions follow from the order (schedule.cpp).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "program/program.h"
#include "spec/strategy.h"

namespace foresail {

/// A stage of a pipeline and what passes through it.
struct PipelineStage {
  int32_t stages = 1, stage = 0;
  int32_t chunks = 1;  ///< virtual stages per stage
  int32_t micro_batches = 1;
};

/// Entries with phase, chunk and micro-batch.
using StageOrder = std::vector<ScheduleEntry>;

/// How chunks lie on the stages.
enum class ChunkPlacement : uint8_t {
  loops,  ///< chunk c of stage s is virtual stage c * pp + s
  vee,    ///< two chunks: s, and 2 * pp - 1 - s
};

/// What the compiler must know of a schedule.
struct ScheduleRule {
  ScheduleKind kind{};
  bool splits_backward = false;
  int32_t outgoing_buffers = 1;  ///< see schedule.h
  int32_t least_chunks = 1, most_chunks = 1;
  ChunkPlacement placement = ChunkPlacement::loops;
  StageOrder (*training)(const PipelineStage&) = nullptr;
  StageOrder (*forward)(const PipelineStage&) = nullptr;
};

const ScheduleRule& rule_of(ScheduleKind kind);

}  // namespace foresail
