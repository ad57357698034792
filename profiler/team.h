// The ranks that measure together. Every decision (go on, skip, how often) is rank 0's, so that all do the same.
#pragma once

#include <chrono>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "spec/machine.h"

namespace foresail {

using ProfileClock = std::chrono::steady_clock;
inline double seconds_between(ProfileClock::time_point begin, ProfileClock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

class Team {
 public:
  /// `communicator` gets one group, the world, until `use_groups`.
  Team(Communicator& communicator, double budget_seconds);

  Communicator& communicator() { return communicator_; }
  int size() const { return communicator_.size(); }
  bool leads() const { return communicator_.rank() == 0; }

  /// Replaces the communicator's groups by the world (group 0) and these.
  void use_groups(const std::vector<std::vector<int>>& groups);
  void barrier();
  /// Rank 0's value on every rank.
  double agreed(double value);
  /// Seconds of the budget that are left, as rank 0 sees it.
  double remaining();
  double elapsed() const;

  /// One measurement from every rank's own: mean of the medians, largest spread, sum of the samples. All ranks give the
  /// same number of values in the same order.
  std::vector<Measurement> combined(std::span<const Measurement> own);
  /// Sum over the ranks, in place.
  void sum(std::span<double> values);

 private:
  Communicator& communicator_;
  double budget_seconds_;
  ProfileClock::time_point start_;
  std::vector<int> world_;
};

}  // namespace foresail
