// Whole multiples: sizes and offsets are multiples of something everywhere, and what is cut into parts is rounded up.
#pragma once

#include <cstdint>

namespace foresail {

/// The smallest multiple of `multiple` (> 0) that is at least `value` (>= 0).
constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// The smallest number of parts of `part` (> 0) that hold `whole` (>= 0); never overflows.
constexpr int64_t divide_up(int64_t whole, int64_t part) { return whole / part + (whole % part != 0 ? 1 : 0); }

}  // namespace foresail
