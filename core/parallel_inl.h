// Implementation of parallel_ranges; include core/parallel.h instead.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace foresail {

template <typename Body>
void parallel_ranges(int64_t count, int64_t grain, const Body& body) {
  if (count <= 0) return;
  const int64_t pieces = (count + grain - 1) / grain;
  const int team = static_cast<int>(std::min<int64_t>(thread_count(), pieces));
  if (team <= 1) {
    body(int64_t{0}, count, 0);
    return;
  }
#pragma omp parallel num_threads(team)
  {
    const int thread = omp_get_thread_num();
    const int threads = omp_get_num_threads();
    const int64_t begin = std::min(count, pieces * thread / threads * grain);
    const int64_t end = std::min(count, pieces * (thread + 1) / threads * grain);
    if (begin < end) body(begin, end, thread);
  }
}

}  // namespace foresail
