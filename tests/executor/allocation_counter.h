// Counts heap allocations of this test binary (operator new is replaced in allocation_counter.cpp).
#pragma once

#include <cstdint>

namespace foresail::testing {
int64_t allocations();
/// Allocated and not yet freed.
int64_t outstanding_allocations();
}  // namespace foresail::testing
