// Static checks over compiled Programs, before anything runs, in time independent of dp.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "program/program.h"

namespace foresail {

/// Problems found, empty if none:
/// - every buffer inside the arena, its segment and its micro-batch's slot, aligned, written before it is read, not
///   overwritten while it lives or while it is sent; shares of parameters gathered after their update;
/// - operands of the right shape for their op; collectives whose sizes fit their group, all of a group on one queue;
/// - messages on the channels of the chunk that sends them, every send waited for;
/// - schedule complete: each micro-batch once in each phase, slots free when reused, neighbours where hidden states pass
///   from chunk to chunk on one rank.
/// Walks every executed instruction once: n log n in their number.
std::vector<std::string> check_program(const Program& program);

/// Across the stages of a pipeline, given in order: every virtual stage and layer once, sends match receives in bytes and
/// order, collectives between stages meet, no deadlock.
std::vector<std::string> check_pipeline(std::span<const Program> stages);

/// The largest sum of live bytes over every instruction of the step: a buffer lives from first write to last read, the
/// persistent region always. What a perfect layout could reach. Flat ranges that are read or added to in parts live as one
/// buffer.
int64_t liveness_bound(const Program& program);

/// Byte ranges of the arena that no buffer of the Program covers on any shard rank (alignment gaps and layout
/// holes): poisoned in tests.
std::vector<Segment> arena_gaps(const Program& program);

}  // namespace foresail
