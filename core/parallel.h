// The one way in which CPU code uses threads: static partition over the process's team (the OpenMP team that oneDNN
// uses too, so that no second pool fights for the cores). Results do not depend on timing.
#pragma once

#include <algorithm>
#include <cstdint>

namespace foresail {

/// Sets the team size of this process (>= 1); a rank calls it once at start.
void set_thread_count(int threads);
int thread_count();

/// Calls `body(begin, end, thread)` on disjoint ranges that cover [0, count): at most one range per thread, in order.
/// Ranges are multiples of `grain` except the last. `body` must not throw.
template <typename Body>
void parallel_ranges(int64_t count, int64_t grain, const Body& body);

}  // namespace foresail

#include "core/parallel_inl.h"
