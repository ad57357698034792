// Figures of the machine by itself: copying, the best matrix product, one op alone, messages and collectives.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "ops/op.h"
#include "profiler/repeat.h"
#include "profiler/team.h"

namespace foresail {

/// Bytes read and written per second by one rank while all copy arrays that no cache holds.
double measure_copy(Team& team, const RepeatLimits& limits);

/// FLOP/s of one rank in the best of a few large f32 matrix products, all ranks at work.
double measure_peak(Team& team, Device& device, const RepeatLimits& limits);

/// One op alone, its operands as warm as the caches allow. Combined over the team. Token ids are below `vocabulary`.
Measurement measure_op(Team& team, Device& device, const OpInstance& op, int64_t vocabulary,
                       const RepeatLimits& limits);

/// Bytes that measure_op allocates for the op.
int64_t operand_bytes(const OpInstance& op, Device& device);

/// "kind/group_size/bytes" over all kinds, group sizes (divisors of the team, all sibling groups at once) and sizes, within
/// `seconds` of all budget; the smallest sizes come first. Keys in `known` are left out. Every kind is measured small and
/// large in one group whatever the budget.
std::map<std::string, Measurement> measure_communication(Team& team, const std::vector<int64_t>& bytes, double seconds,
                                                         const std::map<std::string, Measurement>& known);

}  // namespace foresail
