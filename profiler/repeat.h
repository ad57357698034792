// How a short piece of work is timed by all ranks at once: batches long enough for the clock, repeated until the spread
// is known or the time is used.
#pragma once

#include <functional>

#include "profiler/team.h"

namespace foresail {

struct RepeatLimits {
  double seconds = 0.05;  ///< for all samples together
  int least_samples = 5, most_samples = 50;
  double batch_seconds = 5e-4;  ///< least length of one sample
  double small_spread = 0.02;   ///< enough when the spread is below
};

/// Duration of one call of `work` on this rank (not combined over the team). All ranks call `work` equally often, so it
/// may communicate; each sample starts behind a barrier.
Measurement repeat(Team& team, const RepeatLimits& limits, const std::function<void()>& work);

}  // namespace foresail
