#include "profiler/samples.h"

#include <algorithm>
#include <cmath>

namespace foresail {

double percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double place = fraction * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(std::floor(place));
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (place - std::floor(place)) * (values[high] - values[low]);
}

Measurement summarise(const std::vector<double>& seconds) {
  Measurement result;
  result.seconds = median(seconds);
  result.samples = static_cast<int32_t>(seconds.size());
  if (result.seconds > 0) {
    result.spread = (percentile(seconds, 0.9) - percentile(seconds, 0.1)) / (2 * result.seconds);
  }
  return result;
}

}  // namespace foresail
