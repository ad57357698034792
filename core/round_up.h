// Sizes and offsets are multiples of something everywhere.
#pragma once

#include <cstdint>

namespace foresail {

/// The smallest multiple of `multiple` (> 0) that is at least `value` (>= 0).
constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace foresail
