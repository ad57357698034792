#include "profiler/team.h"

#include <numeric>

namespace foresail {
namespace {
constexpr GroupId kWorld = 0;
}

Team::Team(Communicator& communicator, double budget_seconds)
    : communicator_(communicator),
      budget_seconds_(budget_seconds),
      start_(ProfileClock::now()),
      world_(static_cast<size_t>(communicator.size())) {
  std::iota(world_.begin(), world_.end(), 0);
  use_groups({});
}

void Team::use_groups(const std::vector<std::vector<int>>& groups) {
  std::vector<std::vector<int>> all{world_};
  all.insert(all.end(), groups.begin(), groups.end());
  communicator_.create_groups(all);
}

void Team::barrier() { communicator_.barrier(kWorld); }

double Team::agreed(double value) {
  communicator_.broadcast(&value, sizeof value, 0, kWorld);
  return value;
}

double Team::elapsed() const { return seconds_between(start_, ProfileClock::now()); }

double Team::remaining() { return agreed(budget_seconds_ - elapsed()); }

void Team::sum(std::span<double> values) {
  communicator_.all_reduce(values.data(), static_cast<int64_t>(values.size()), DType::f64, ReduceKind::sum, kWorld);
}

std::vector<Measurement> Team::combined(std::span<const Measurement> own) {
  std::vector<double> sums, spreads;
  for (const Measurement& one : own) {
    sums.push_back(one.seconds);
    sums.push_back(one.samples);
    spreads.push_back(one.spread);
  }
  if (own.empty()) return {};
  sum(sums);
  communicator_.all_reduce(spreads.data(), static_cast<int64_t>(spreads.size()), DType::f64, ReduceKind::max, kWorld);
  std::vector<Measurement> result;
  for (size_t i = 0; i < own.size(); ++i) {
    result.push_back({sums[2 * i] / size(), spreads[i], static_cast<int32_t>(sums[2 * i + 1])});
  }
  return result;
}

}  // namespace foresail
