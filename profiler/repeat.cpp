#include "profiler/repeat.h"

#include <algorithm>
#include <cmath>

#include "profiler/samples.h"

namespace foresail {

Measurement repeat(Team& team, const RepeatLimits& limits, const std::function<void()>& work) {
  work();  // page faults, code building
  team.barrier();
  const auto begin = ProfileClock::now();
  work();
  const double once = team.agreed(std::max(seconds_between(begin, ProfileClock::now()), 1e-8));
  const int batch = static_cast<int>(std::clamp(std::ceil(limits.batch_seconds / once), 1.0, 1e5));
  std::vector<double> samples;
  double used = once;
  while (static_cast<int>(samples.size()) < limits.most_samples) {
    const int taken = static_cast<int>(samples.size());
    const bool steady = taken >= limits.least_samples && summarise(samples).spread < limits.small_spread;
    const bool enough =
        taken >= 1 && (steady || (used >= limits.seconds && taken >= std::min(limits.least_samples, 3)) ||
                       used >= 4 * limits.seconds);
    if (team.agreed(enough ? 1 : 0) != 0) break;
    team.barrier();
    const auto start = ProfileClock::now();
    for (int i = 0; i < batch; ++i) work();
    const double seconds = seconds_between(start, ProfileClock::now());
    samples.push_back(seconds / batch);
    used += seconds;
  }
  Measurement result = summarise(samples);
  result.samples *= batch;
  return result;
}

}  // namespace foresail
