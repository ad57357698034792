// Static checks over compiled Programs, before anything runs, in time independent of dp.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "program/program.h"

namespace foresail {

/// Problems found, empty if none: every buffer inside the arena and written before it is read, operands of the right
/// shape for their op, no live buffer overlapped by a write, aligned offsets, schedule complete (each micro-batch once
/// forward, once backward, slots free when reused).
std::vector<std::string> check_program(const Program& program);

/// Across the stages of a pipeline: sends match receives in bytes and order, no deadlock.
std::vector<std::string> check_pipeline(std::span<const Program> stages);

/// The largest sum of live bytes over every instruction of the step: a buffer lives from first write to last read, the
/// persistent region always. What a perfect layout could reach.
int64_t liveness_bound(const Program& program);

/// Byte ranges of the arena that no buffer of the Program covers (alignment gaps and layout holes): poisoned in tests.
std::vector<Segment> arena_gaps(const Program& program);

}  // namespace foresail
