// The solver against brute force: every choice for a block, every mix for a stage.
#include "program/recompute_solver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>

#include <fmt/format.h>

#include "tests/program/recompute_blocks.h"
#include "tests/program/small_models.h"

namespace foresail {
namespace {

using testing::NamedBlock;
using testing::parallel_blocks;
using testing::plausible_costs;
using testing::random_block;
using testing::random_costs;
using testing::real_blocks;
using testing::small_gpt2;
using testing::small_llama;
using testing::trained_block;

constexpr double kRounding = 1e-9;

/// Costs that no other one matches in both; bytes ascend.
std::vector<ReplayCost> best_of(std::vector<ReplayCost> costs) {
  std::sort(costs.begin(), costs.end(), [](const ReplayCost& a, const ReplayCost& b) {
    return a.kept_bytes != b.kept_bytes ? a.kept_bytes < b.kept_bytes : a.replay_seconds < b.replay_seconds;
  });
  double least = std::numeric_limits<double>::infinity();
  std::erase_if(costs, [&](const ReplayCost& cost) {
    if (cost.replay_seconds >= least * (1 - kRounding)) return true;
    least = cost.replay_seconds;
    return false;
  });
  return costs;
}

/// All 2^n choices of the droppable tensors, each priced by what replay_plan says.
std::vector<ReplayCost> brute_force(const Differentiated& layer, const BlockCosts& costs) {
  const std::set<int> all = droppable_tensors(layer);
  const std::vector<int> droppable(all.begin(), all.end());
  std::vector<ReplayCost> found;
  for (uint32_t bits = 0; bits < uint32_t{1} << droppable.size(); ++bits) {
    std::set<int> dropped;
    for (size_t i = 0; i < droppable.size(); ++i) {
      if ((bits >> i & 1) != 0) dropped.insert(droppable[i]);
    }
    found.push_back(cost_of(replay_plan(layer, dropped), costs));
    if (found.size() == 4096) found = best_of(std::move(found));
  }
  return best_of(std::move(found));
}

/// Least replay under `limit`, infinite if nothing fits.
double least_seconds(const std::vector<ReplayCost>& costs, int64_t limit) {
  double least = std::numeric_limits<double>::infinity();
  for (const ReplayCost& cost : costs) {
    if (cost.kept_bytes <= limit) least = std::min(least, cost.replay_seconds);
  }
  return least;
}

std::vector<ReplayCost> costs_of(const RecomputeFront& front) {
  std::vector<ReplayCost> costs;
  for (const RecomputePoint& point : front.points) costs.push_back(point.cost);
  return costs;
}

/// The front is true (replay_plan confirms every point) and no limit has a better choice.
void expect_front(const Differentiated& layer, const BlockCosts& costs, const std::string& what) {
  const RecomputeFront front = recompute_front(layer, costs);
  EXPECT_TRUE(front.exact) << what;
  for (const RecomputePoint& point : front.points) {
    const ReplayCost cost = cost_of(replay_plan(layer, point.dropped), costs);
    EXPECT_EQ(cost.kept_bytes, point.cost.kept_bytes) << what;
    EXPECT_DOUBLE_EQ(cost.replay_seconds, point.cost.replay_seconds) << what;
  }
  const std::vector<ReplayCost> best = brute_force(layer, costs);
  ASSERT_FALSE(best.empty()) << what;
  const std::vector<ReplayCost> solved = costs_of(front);
  for (const ReplayCost& optimum : best) {
    const double seconds = least_seconds(solved, optimum.kept_bytes);
    EXPECT_LE(seconds, optimum.replay_seconds * (1 + kRounding)) << what << ", limit " << optimum.kept_bytes;
  }
  EXPECT_EQ(best_of(solved).size(), best.size()) << what << ": nothing is on the front that is not best";
}

TEST(RecomputeSolver, FrontOfRandomBlocksEqualsBruteForce) {
  std::mt19937 random(3);
  int tried = 0;
  size_t most_points = 0;
  while (tried < 400) {
    const Differentiated layer = random_block(random);
    if (droppable_tensors(layer).size() > 12) continue;
    ++tried;
    const BlockCosts costs = random_costs(layer, random);
    expect_front(layer, costs, fmt::format("random block {}", tried));
    most_points = std::max(most_points, recompute_front(layer, costs).points.size());
  }
  EXPECT_GE(most_points, 10u) << "the blocks offer real choices";
}

TEST(RecomputeSolver, FrontOfRealBlocksEqualsBruteForce) {
  std::mt19937 random(4);
  for (const auto& [name, layer] : real_blocks()) {
    const size_t droppable = droppable_tensors(layer).size();
    ASSERT_LE(droppable, 18u) << name;
    expect_front(layer, plausible_costs(layer), name);
    const int rounds = droppable <= 12 ? 8 : droppable <= 15 ? 2 : 0;
    for (int round = 0; round < rounds; ++round)
      expect_front(layer, random_costs(layer, random), name + ", random costs");
  }
}

TEST(RecomputeSolver, FrontOfParallelBlocksEqualsBruteForce) {
  for (const auto& [name, layer] : parallel_blocks()) {
    const size_t droppable = droppable_tensors(layer).size();
    if (droppable <= 17) expect_front(layer, plausible_costs(layer), name);
    EXPECT_TRUE(recompute_front(layer, plausible_costs(layer)).exact) << name;
  }
}

TEST(RecomputeSolver, FrontReachesFromFullToNone) {
  for (const auto& [name, layer] : real_blocks()) {
    const BlockCosts costs = plausible_costs(layer);
    const RecomputeFront front = recompute_front(layer, costs);
    ASSERT_GE(front.points.size(), 3u) << name;
    EXPECT_EQ(front.points.front().cost.kept_bytes, 0) << name;
    EXPECT_EQ(front.points.back().cost.replay_seconds, 0) << name;
    for (size_t p = 1; p < front.points.size(); ++p) {
      EXPECT_LT(front.points[p - 1].cost.kept_bytes, front.points[p].cost.kept_bytes) << name;
      EXPECT_GT(front.points[p - 1].cost.replay_seconds, front.points[p].cost.replay_seconds) << name;
    }
  }
}

TEST(RecomputeSolver, NoPresetBeatsTheFront) {
  for (const auto& [name, layer] : real_blocks()) {
    const BlockCosts costs = plausible_costs(layer);
    const std::vector<ReplayCost> front = costs_of(recompute_front(layer, costs));
    for (const Recompute preset : {Recompute::none, Recompute::selective, Recompute::full}) {
      const ReplayCost cost = cost_of(replay_plan(layer, dropped_tensors(layer, preset, {})), costs);
      EXPECT_LE(least_seconds(front, cost.kept_bytes), cost.replay_seconds * (1 + kRounding)) << name;
    }
  }
}

TEST(RecomputeSolver, ThinnedFrontSaysSoAndIsStillTrue) {
  const Differentiated layer = trained_block(small_gpt2(), 16, false, true);
  std::mt19937 random(5);
  BlockCosts costs = random_costs(layer, random);
  for (double& seconds : costs.node_seconds) seconds = 1 + static_cast<double>(random() % 1000);
  for (int64_t& bytes : costs.tensor_bytes) bytes = 64 + static_cast<int64_t>(random() % 100000);
  const RecomputeFront exact = recompute_front(layer, costs);
  const RecomputeFront thinned = recompute_front(layer, costs, 8);
  EXPECT_TRUE(exact.exact);
  EXPECT_FALSE(thinned.exact);
  ASSERT_FALSE(thinned.points.empty());
  EXPECT_EQ(thinned.points.front().cost.kept_bytes, 0) << "what fits in the least memory is never lost";
  EXPECT_EQ(thinned.points.back().cost.replay_seconds, 0) << "nor is what needs no replay";
  for (const RecomputePoint& point : thinned.points) {
    EXPECT_EQ(cost_of(replay_plan(layer, point.dropped), costs).kept_bytes, point.cost.kept_bytes);
    EXPECT_GE(point.cost.replay_seconds * (1 + kRounding), least_seconds(costs_of(exact), point.cost.kept_bytes));
  }
}

RecomputeFront random_front(std::mt19937& random, int points) {
  RecomputeFront front;
  int64_t bytes = static_cast<int64_t>(random() % 50);
  double seconds = 1000;
  for (int p = 0; p < points; ++p) {
    front.points.push_back({{}, {bytes, seconds}});
    bytes += 1 + static_cast<int64_t>(random() % 100);
    seconds -= 1 + static_cast<double>(random() % 150);
  }
  return front;
}

/// Every way to spread the layers of every demand over the points.
double brute_force_stage(std::span<const StageDemand> demands, int64_t limit) {
  double best = std::numeric_limits<double>::infinity();
  const std::function<void(size_t, size_t, int64_t, int64_t, double)> place = [&](size_t d, size_t p, int64_t layers,
                                                                                  int64_t bytes, double seconds) {
    if (bytes > limit) return;
    if (d == demands.size()) {
      best = std::min(best, seconds);
      return;
    }
    const auto& points = demands[d].front->points;
    if (p == points.size()) {
      if (layers == 0) place(d + 1, 0, d + 1 < demands.size() ? demands[d + 1].layers : 0, bytes, seconds);
      return;
    }
    for (int64_t take = 0; take <= layers; ++take) {
      place(d, p + 1, layers - take, bytes + take * points[p].cost.kept_bytes * demands[d].in_flight,
            seconds + static_cast<double>(take) * points[p].cost.replay_seconds);
    }
  };
  place(0, 0, demands.empty() ? 0 : demands[0].layers, 0, 0);
  return best;
}

/// Adds up again what a choice says of itself.
void expect_consistent(const StageChoice& choice, std::span<const StageDemand> demands, int64_t limit) {
  int64_t bytes = 0;
  double seconds = 0;
  ASSERT_EQ(choice.layers.size(), demands.size());
  for (size_t d = 0; d < demands.size(); ++d) {
    int64_t layers = 0;
    for (size_t p = 0; p < choice.layers[d].size(); ++p) {
      const ReplayCost& cost = demands[d].front->points[p].cost;
      EXPECT_GE(choice.layers[d][p], 0);
      layers += choice.layers[d][p];
      bytes += choice.layers[d][p] * cost.kept_bytes * demands[d].in_flight;
      seconds += static_cast<double>(choice.layers[d][p]) * cost.replay_seconds;
    }
    EXPECT_EQ(layers, demands[d].layers);
  }
  EXPECT_EQ(choice.kept_bytes, bytes);
  EXPECT_NEAR(choice.replay_seconds, seconds, 1e-9 * (1 + seconds));
  EXPECT_LE(bytes, limit);
}

TEST(RecomputeSolver, StageEqualsBruteForce) {
  std::mt19937 random(6);
  int feasible = 0, infeasible = 0, mixed = 0;
  for (int round = 0; round < 600; ++round) {
    std::vector<RecomputeFront> fronts;
    for (int d = 1 + static_cast<int>(random() % 3); d > 0; --d) {
      fronts.push_back(random_front(random, 1 + static_cast<int>(random() % 5)));
    }
    std::vector<StageDemand> demands;
    int64_t least = 0, most = 0;
    for (const RecomputeFront& front : fronts) {
      demands.push_back({&front, static_cast<int64_t>(random() % 6), 1 + static_cast<int64_t>(random() % 4)});
      const int64_t slots = demands.back().layers * demands.back().in_flight;
      least += slots * front.points.front().cost.kept_bytes;
      most += slots * front.points.back().cost.kept_bytes;
    }
    const int64_t limit = least - 20 + static_cast<int64_t>(random() % static_cast<uint32_t>(most - least + 40));
    const double best = brute_force_stage(demands, limit);
    const auto choice = solve_stage(demands, limit);
    ASSERT_EQ(choice.has_value(), best < std::numeric_limits<double>::infinity()) << round;
    (choice ? feasible : infeasible) += 1;
    if (!choice) continue;
    EXPECT_TRUE(choice->exact);
    expect_consistent(*choice, demands, limit);
    EXPECT_NEAR(choice->replay_seconds, best, 1e-9 * (1 + best)) << round;
    for (const auto& layers : choice->layers) {
      mixed += std::count_if(layers.begin(), layers.end(), [](int64_t count) { return count > 0; }) > 1 ? 1 : 0;
    }
  }
  EXPECT_GT(feasible, 300);
  EXPECT_GT(infeasible, 10);
  EXPECT_GT(mixed, 100) << "layers of one kind choose differently";
}

TEST(RecomputeSolver, StageOfManyLayersMixesPointsAndBeatsEveryUniformChoice) {
  const Differentiated layer = trained_block(load_model("llama-3-8b"), 4096, true, false);
  const RecomputeFront front = recompute_front(layer, plausible_costs(layer));
  const StageDemand demands[] = {{&front, 40, 4}, {&front, 24, 2}};
  const int64_t slots = 40 * 4 + 24 * 2;
  const int64_t most = front.points.back().cost.kept_bytes * slots;
  double before = std::numeric_limits<double>::infinity();
  for (int percent = 0; percent <= 100; percent += 5) {
    const int64_t limit = most / 100 * percent;
    const auto choice = solve_stage(demands, limit);
    ASSERT_TRUE(choice.has_value()) << percent;
    EXPECT_TRUE(choice->exact) << percent;
    expect_consistent(*choice, demands, limit);
    EXPECT_LE(choice->replay_seconds, before * (1 + kRounding)) << "more memory never costs time";
    before = choice->replay_seconds;
    for (const RecomputePoint& point : front.points) {
      if (point.cost.kept_bytes * slots > limit) continue;
      EXPECT_LE(choice->replay_seconds, 64 * point.cost.replay_seconds * (1 + kRounding)) << percent;
    }
  }
  EXPECT_EQ(solve_stage(demands, most)->replay_seconds, 0);
  EXPECT_FALSE(solve_stage(demands, -1).has_value());
}

TEST(RecomputeSolver, ThinnedStageReportsHowFarItCanBeFromTheBest) {
  std::mt19937 random(7);
  int thinned = 0;
  for (int round = 0; round < 100; ++round) {
    const RecomputeFront front = random_front(random, 5);
    const StageDemand demand{&front, 5, 1};
    const int64_t least = 5 * front.points.front().cost.kept_bytes, most = 5 * front.points.back().cost.kept_bytes;
    const int64_t limit = least + static_cast<int64_t>(random() % static_cast<uint32_t>(most - least));
    const auto choice = solve_stage({&demand, 1}, limit, 1);
    ASSERT_TRUE(choice.has_value());
    expect_consistent(*choice, {&demand, 1}, limit);
    const double best = brute_force_stage({&demand, 1}, limit);
    EXPECT_LE(choice->replay_seconds - choice->gap_seconds, best * (1 + kRounding));
    EXPECT_GE(choice->replay_seconds * (1 + kRounding), best);
    if (choice->exact) {
      EXPECT_NEAR(choice->replay_seconds, best, 1e-9 * best);
    }
    thinned += choice->exact ? 0 : 1;
  }
  EXPECT_GT(thinned, 20);
}

TEST(RecomputeSolver, RulesGiveThePointsAgainAndSurviveTheStrategysText) {
  std::vector<NamedBlock> blocks = real_blocks();
  for (NamedBlock& block : parallel_blocks()) blocks.push_back(std::move(block));
  for (const auto& [name, layer] : blocks) {
    const RecomputeFront front = recompute_front(layer, plausible_costs(layer));
    std::vector<int64_t> counts(front.points.size(), 0);
    std::vector<size_t> point_of_layer;
    for (size_t p = 0; p < counts.size(); ++p) {
      counts[p] = static_cast<int64_t>(p % 3);
      point_of_layer.insert(point_of_layer.end(), p % 3, p);
    }
    Strategy strategy;
    strategy.recompute = Recompute::selective;
    strategy.recompute_layers = rules_of(layer, front, counts, 7);
    EXPECT_EQ(parse_strategy(to_text(strategy)).strategy, strategy) << name;
    for (size_t i = 0; i < point_of_layer.size(); ++i) {
      EXPECT_EQ(dropped_tensors(layer, strategy, 7 + static_cast<int64_t>(i)), front.points[point_of_layer[i]].dropped)
          << name << ", point " << point_of_layer[i];
    }
  }
}

TEST(RecomputeSolver, RulesNamePresetsWhereTheChoiceIsOne) {
  const Differentiated layer = trained_block(small_llama(), 16, true, false);
  RecomputeFront front;
  for (const Recompute preset : {Recompute::full, Recompute::selective, Recompute::none}) {
    front.points.push_back({dropped_tensors(layer, preset, {}), {}});
  }
  front.points.push_back({dropped_tensors(layer, Recompute::none, {"activated", "normed_1"}), {}});
  const std::vector<int64_t> counts{1, 0, 2, 1};
  Strategy strategy;
  strategy.recompute_layers = rules_of(layer, front, counts, 4);
  EXPECT_NE(to_text(strategy).find("recompute_layers=4:full/5-6:none/7:normed_1+activated"), std::string::npos)
      << to_text(strategy);
}

}  // namespace
}  // namespace foresail
