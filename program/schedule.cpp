#include "program/schedule.h"

#include <algorithm>

namespace foresail {

int32_t micro_batches_in_flight(int64_t stages, int64_t stage, int64_t micro_batches) {
  return static_cast<int32_t>(std::min(micro_batches, stages - stage));
}

std::vector<ScheduleEntry> one_f_one_b(int64_t stages, int64_t stage, int64_t micro_batches) {
  const int32_t slots = micro_batches_in_flight(stages, stage, micro_batches);
  const auto total = static_cast<int32_t>(micro_batches);
  std::vector<ScheduleEntry> order;
  const auto forward = [&](int32_t m) { order.push_back({Phase::forward, 0, m, m % slots}); };
  const auto backward = [&](int32_t m) { order.push_back({Phase::backward, 0, m, m % slots}); };
  for (int32_t m = 0; m < slots - 1; ++m) forward(m);
  for (int32_t m = slots - 1; m < total; ++m) {
    forward(m);
    backward(m - (slots - 1));
  }
  for (int32_t m = total - (slots - 1); m < total; ++m) backward(m);
  return order;
}

std::vector<ScheduleEntry> forward_only(int64_t micro_batches) {
  std::vector<ScheduleEntry> order;
  for (int32_t m = 0; m < micro_batches; ++m) order.push_back({Phase::forward, 0, m, 0});
  return order;
}

}  // namespace foresail
