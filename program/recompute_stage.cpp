// The mix of front points over the layers of a stage: a multiple-choice knapsack whose classes are interchangeable layers.
#include <algorithm>
#include <limits>

#include "core/error.h"
#include "program/recompute_solver.h"

namespace foresail {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
/// Sums of the same costs in another order differ by less.
constexpr double kRounding = 1e-12;
/// New partial choices that pile up, in multiples of how many may be carried on, before the dominated ones are dropped.
constexpr size_t kListsBeforeThinning = 8;

/// One layer's step between two points of a front's lower convex hull.
struct HullStep {
  size_t demand = 0, from = 0, to = 0;  ///< points of the demand's front
  int64_t bytes = 0;                    ///< more, over all slots
  double seconds = 0;                   ///< less
  double rate() const { return seconds / static_cast<double>(bytes); }
};

int64_t slot_bytes(const StageDemand& demand, size_t point) {
  return demand.front->points[point].cost.kept_bytes * demand.in_flight;
}
double seconds_of(const StageDemand& demand, size_t point) { return demand.front->points[point].cost.replay_seconds; }

/// From the fewest bytes to the fewest seconds; each step saves less per byte than the one before.
std::vector<HullStep> hull_of(const StageDemand& demand, size_t number) {
  std::vector<HullStep> hull;
  for (size_t p = 1; p < demand.front->points.size(); ++p) {
    size_t from = p - 1;
    const auto step = [&] {
      return HullStep{number, from, p, slot_bytes(demand, p) - slot_bytes(demand, from),
                      seconds_of(demand, from) - seconds_of(demand, p)};
    };
    while (!hull.empty() && hull.back().rate() <= step().rate()) {
      from = hull.back().from;
      hull.pop_back();
    }
    hull.push_back(step());
  }
  return hull;
}

/// The linear relaxation for some remaining layers: least seconds under a limit if layers could take mixtures of points.
class Relaxation {
 public:
  /// `layers` by demand; `steps` of all demands, best rate first.
  Relaxation(std::span<const StageDemand> demands, const std::vector<int64_t>& layers,
             const std::vector<HullStep>& steps) {
    bytes_.push_back(0);
    seconds_.push_back(0);
    for (size_t d = 0; d < demands.size(); ++d) {
      bytes_[0] += layers[d] * slot_bytes(demands[d], 0);
      seconds_[0] += static_cast<double>(layers[d]) * seconds_of(demands[d], 0);
    }
    for (const HullStep& step : steps) {
      if (layers[step.demand] == 0) continue;
      bytes_.push_back(bytes_.back() + layers[step.demand] * step.bytes);
      seconds_.push_back(seconds_.back() - static_cast<double>(layers[step.demand]) * step.seconds);
    }
  }

  double seconds(int64_t limit_bytes) const {
    if (limit_bytes < bytes_[0]) return kNever;
    const size_t next =
        static_cast<size_t>(std::upper_bound(bytes_.begin(), bytes_.end(), limit_bytes) - bytes_.begin());
    if (next == bytes_.size()) return seconds_.back();
    const double part =
        static_cast<double>(limit_bytes - bytes_[next - 1]) / static_cast<double>(bytes_[next] - bytes_[next - 1]);
    return seconds_[next - 1] + part * (seconds_[next] - seconds_[next - 1]);
  }

 private:
  std::vector<int64_t> bytes_;   // ascending corners
  std::vector<double> seconds_;  // at the corners
};

/// Layers placed so far.
struct Partial {
  int64_t bytes = 0;
  double seconds = 0;
  int before = -1;  ///< Partial of one layer less, in the list of all
  size_t point = 0;
};

class StageSearch {
 public:
  StageSearch(std::span<const StageDemand> demands, int64_t limit_bytes, size_t most)
      : demands_(demands), limit_(limit_bytes), most_(most) {}
  std::optional<StageChoice> run();

 private:
  StageChoice smallest() const;
  void add_up(StageChoice& choice) const;
  StageChoice rounded(const StageChoice& start) const;
  void upgrade(StageChoice& choice, const HullStep& step, int64_t layers) const;
  std::optional<HullStep> best_upgrade(const StageChoice& choice) const;
  void place_layer(size_t demand, const Relaxation& remaining, double best);
  void keep_best(std::vector<Partial>& partials, const Relaxation& remaining);
  StageChoice choice_of(int partial) const;

  std::span<const StageDemand> demands_;
  int64_t limit_;
  size_t most_;
  std::vector<HullStep> steps_;
  std::vector<Partial> all_;       // of every number of layers, for the way back
  std::vector<Partial> partials_;  // of the current number
  bool exact_ = true;
};

StageChoice StageSearch::smallest() const {
  StageChoice choice;
  for (const StageDemand& demand : demands_) {
    choice.layers.emplace_back(demand.front->points.size(), 0);
    choice.layers.back()[0] = demand.layers;
  }
  add_up(choice);
  return choice;
}

/// Costs from counts, in one order whichever way the choice was found.
void StageSearch::add_up(StageChoice& choice) const {
  choice.kept_bytes = 0;
  choice.replay_seconds = 0;
  for (size_t d = 0; d < demands_.size(); ++d) {
    for (size_t p = 0; p < choice.layers[d].size(); ++p) {
      choice.kept_bytes += choice.layers[d][p] * slot_bytes(demands_[d], p);
      choice.replay_seconds += static_cast<double>(choice.layers[d][p]) * seconds_of(demands_[d], p);
    }
  }
}

void StageSearch::upgrade(StageChoice& choice, const HullStep& step, int64_t layers) const {
  choice.layers[step.demand][step.from] -= layers;
  choice.layers[step.demand][step.to] += layers;
  choice.kept_bytes += layers * step.bytes;
  choice.replay_seconds -= static_cast<double>(layers) * step.seconds;
}

/// The change of one layer to any other point that fits and saves most.
std::optional<HullStep> StageSearch::best_upgrade(const StageChoice& choice) const {
  std::optional<HullStep> best;
  for (size_t d = 0; d < demands_.size(); ++d) {
    const size_t points = demands_[d].front->points.size();
    for (size_t from = 0; from < points; ++from) {
      if (choice.layers[d][from] == 0) continue;
      for (size_t to = from + 1; to < points; ++to) {
        const HullStep step{d, from, to, slot_bytes(demands_[d], to) - slot_bytes(demands_[d], from),
                            seconds_of(demands_[d], from) - seconds_of(demands_[d], to)};
        if (choice.kept_bytes + step.bytes > limit_) break;  // bytes ascend
        if (!best || step.seconds > best->seconds) best = step;
      }
    }
  }
  return best;
}

/// The relaxation's solution in whole layers, then single upgrades while any fits: the choice to beat.
StageChoice StageSearch::rounded(const StageChoice& start) const {
  StageChoice choice = start;
  for (const HullStep& step : steps_) {
    const int64_t room = (limit_ - choice.kept_bytes) / step.bytes;
    upgrade(choice, step, std::min(room, choice.layers[step.demand][step.from]));
  }
  while (const auto step = best_upgrade(choice)) upgrade(choice, *step, 1);
  add_up(choice);
  return choice;
}

void StageSearch::place_layer(size_t demand, const Relaxation& remaining, double best) {
  std::vector<Partial> next;
  const int first = static_cast<int>(all_.size());
  all_.insert(all_.end(), partials_.begin(), partials_.end());
  for (size_t i = 0; i < partials_.size(); ++i) {
    for (size_t p = 0; p < demands_[demand].front->points.size(); ++p) {
      const Partial partial{partials_[i].bytes + slot_bytes(demands_[demand], p),
                            partials_[i].seconds + seconds_of(demands_[demand], p), first + static_cast<int>(i), p};
      const double bound = partial.seconds + remaining.seconds(limit_ - partial.bytes);
      if (bound < best * (1 - kRounding)) next.push_back(partial);
    }
    if (next.size() > kListsBeforeThinning * most_) keep_best(next, remaining);  // bounds memory
  }
  keep_best(next, remaining);
  partials_ = std::move(next);
}

void StageSearch::keep_best(std::vector<Partial>& partials, const Relaxation& remaining) {
  std::sort(partials.begin(), partials.end(), [](const Partial& a, const Partial& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.seconds < b.seconds;
  });
  double least = kNever;
  std::erase_if(partials, [&](const Partial& partial) {
    if (partial.seconds >= least * (1 - kRounding)) return true;
    least = partial.seconds;
    return false;
  });
  if (partials.size() <= most_) return;
  exact_ = false;
  const auto bound = [&](const Partial& partial) {
    return partial.seconds + remaining.seconds(limit_ - partial.bytes);
  };
  std::nth_element(partials.begin(), partials.begin() + static_cast<std::ptrdiff_t>(most_), partials.end(),
                   [&](const Partial& a, const Partial& b) { return bound(a) < bound(b); });
  partials.resize(most_);
}

/// `partial` is one of the last layer's; layers were placed demand by demand.
StageChoice StageSearch::choice_of(int partial) const {
  StageChoice choice = smallest();
  for (size_t d = demands_.size(); d-- > 0;) {
    choice.layers[d].assign(choice.layers[d].size(), 0);
    for (int64_t layer = 0; layer < demands_[d].layers; ++layer) {
      ++choice.layers[d][all_[static_cast<size_t>(partial)].point];
      partial = all_[static_cast<size_t>(partial)].before;
    }
  }
  add_up(choice);
  return choice;
}

std::optional<StageChoice> StageSearch::run() {
  const StageChoice start = smallest();
  if (start.kept_bytes > limit_) return std::nullopt;
  std::vector<int64_t> remaining;
  for (size_t d = 0; d < demands_.size(); ++d) {
    remaining.push_back(demands_[d].layers);
    const std::vector<HullStep> hull = hull_of(demands_[d], d);
    steps_.insert(steps_.end(), hull.begin(), hull.end());
  }
  std::stable_sort(steps_.begin(), steps_.end(),
                   [](const HullStep& a, const HullStep& b) { return a.rate() > b.rate(); });
  const double bound = Relaxation(demands_, remaining, steps_).seconds(limit_);
  StageChoice best = rounded(start);
  partials_ = {Partial{}};
  for (size_t d = 0; d < demands_.size(); ++d) {
    while (remaining[d] > 0) {
      --remaining[d];
      place_layer(d, Relaxation(demands_, remaining, steps_), best.replay_seconds);
    }
  }
  if (!partials_.empty() && partials_[0].before >= 0) {
    const auto least = std::min_element(partials_.begin(), partials_.end(),
                                        [](const Partial& a, const Partial& b) { return a.seconds < b.seconds; });
    if (least->seconds < best.replay_seconds) {
      all_.push_back(*least);
      best = choice_of(static_cast<int>(all_.size()) - 1);
    }
  }
  best.exact = exact_;
  if (!exact_) best.gap_seconds = std::max(0.0, best.replay_seconds - bound);
  return best;
}

}  // namespace

std::optional<StageChoice> solve_stage(std::span<const StageDemand> demands, int64_t limit_bytes,
                                       size_t most_partial_choices) {
  for (const StageDemand& demand : demands) {
    ensure(demand.front != nullptr && !demand.front->points.empty(), "a demand has a front");
    ensure(demand.layers >= 0 && demand.in_flight >= 1, "layers and slots are counted");
  }
  ensure(most_partial_choices >= 1, "at least one partial choice is carried on");
  return StageSearch(demands, limit_bytes, most_partial_choices).run();
}

}  // namespace foresail
