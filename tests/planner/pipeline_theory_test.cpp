// Bubbles and micro-batches in flight of every schedule, played with equal stages (F = B = W, no messages' time, no
// embedding or head), against what the papers derive.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "planner/simulator/simulator.h"
#include "tests/planner/hand_made.h"

namespace foresail {
namespace {

using test::add_optimizer;
using test::pipeline;
using test::PlainCosts;

constexpr SimulationOptions kRecord{.record_events = true, .devices_per_node = 1};

Strategy strategy_of(ScheduleKind schedule, int64_t stages, int64_t chunks = 1) {
  Strategy strategy;
  strategy.schedule = schedule;
  strategy.pp = stages;
  strategy.virtual_stages = chunks;
  return strategy;
}

/// What one stage did.
struct Lane {
  double first_start = 1e30, last_end = 0, busy = 0;
  int in_flight = 0;  ///< most (micro-batch, chunk) pairs between the start of forward and the end of backward

  double bubble() const { return last_end - first_start - busy; }
};

/// Waiting for a message or a collective is not work.
bool works(const Program& program, const SimulatedEvent& event) {
  const Call& call =
      program
          .calls[static_cast<size_t>(event.phase)][static_cast<size_t>(event.chunk)][static_cast<size_t>(event.call)];
  const Block& block = program.blocks[static_cast<size_t>(call.block)];
  return block.instructions[static_cast<size_t>(event.instruction)].kind == InstructionKind::op;
}

std::vector<Lane> lanes_of(const std::vector<Program>& stages, const Simulation& simulation) {
  std::vector<Lane> lanes(stages.size());
  std::map<int32_t, std::map<double, int>> changes;  // by stage and time
  for (const SimulatedEvent& event : simulation.events) {
    if (!works(stages[static_cast<size_t>(event.stage)], event)) continue;
    Lane& lane = lanes[static_cast<size_t>(event.stage)];
    lane.first_start = std::min(lane.first_start, event.begin_seconds);
    lane.last_end = std::max(lane.last_end, event.end_seconds);
    lane.busy += event.end_seconds - event.begin_seconds;
    if (event.phase == Phase::forward) ++changes[event.stage][event.begin_seconds];
    if (event.phase == Phase::backward) --changes[event.stage][event.end_seconds];
  }
  for (auto& [stage, times] : changes) {
    int held = 0;
    for (const auto& [time, change] : times) {
      held += change;
      Lane& lane = lanes[static_cast<size_t>(stage)];
      lane.in_flight = std::max(lane.in_flight, held);
    }
  }
  return lanes;
}

constexpr test::ChunkSeconds kEqual{1, 1, 1};

TEST(PipelineTheory, GPipeAndOneFOneBIdleAlikeButHoldDifferentNumbers) {
  for (const int p : {2, 3, 4, 8}) {
    for (const int m : {p, 2 * p, 3 * p + 1}) {
      for (const ScheduleKind schedule : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b}) {
        const auto stages = pipeline(strategy_of(schedule, p), m, kEqual);
        const Simulation played = simulate(stages, PlainCosts{}, kRecord);
        // Huang et al. 2019; Narayanan et al. 2021, section 2.2: (p - 1)(F + B + W).
        EXPECT_DOUBLE_EQ(played.step_seconds, 3.0 * m + 3.0 * (p - 1)) << p << " " << m;
        EXPECT_DOUBLE_EQ(played.time.bubble, 3.0 * (p - 1));
        const auto lanes = lanes_of(stages, played);
        for (int s = 0; s < p; ++s) {
          const Lane& lane = lanes[static_cast<size_t>(s)];
          EXPECT_DOUBLE_EQ(lane.bubble(), 3.0 * (p - 1 - s)) << "stage " << s;
          EXPECT_EQ(lane.in_flight, schedule == ScheduleKind::gpipe ? m : std::min(m, p - s)) << "stage " << s;
          EXPECT_EQ(lane.in_flight, stages[static_cast<size_t>(s)].chunks[0].slots) << "stage " << s;
        }
      }
    }
  }
}

TEST(PipelineTheory, InterleavingDividesTheBubbleByTheChunks) {
  for (const int p : {2, 3, 4}) {
    for (const int v : {2, 3, 4}) {
      const int m = 4 * p;
      const auto stages = pipeline(strategy_of(ScheduleKind::interleaved, p, v), m, kEqual);
      const Simulation played = simulate(stages, PlainCosts{}, kRecord);
      // Narayanan et al. 2021, section 2.2: a chunk lasts 1/v of a stage, the bubble is (p - 1)(F + B + W) / v.
      const double stage_work = 3.0 * v;
      EXPECT_DOUBLE_EQ(played.step_seconds, m * stage_work + (p - 1) * stage_work / v) << p << " " << v;
      const auto lanes = lanes_of(stages, played);
      for (int s = 0; s < p; ++s) {
        // Megatron-LM: 2 (p - 1 - s) + (v - 1) p forwards of warm-up, then one more before the first backward.
        EXPECT_EQ(lanes[static_cast<size_t>(s)].in_flight, 2 * (p - 1 - s) + (v - 1) * p + 1) << "stage " << s;
      }
    }
  }
}

TEST(PipelineTheory, ZbH1KeepsAThirdOfTheBubbleWithTheMemoryOfOneFOneB) {
  for (const int p : {2, 3, 4, 8}) {
    for (const int m : {2 * p, 3 * p + 1}) {
      const auto stages = pipeline(strategy_of(ScheduleKind::zb_h1, p), m, kEqual);
      const Simulation played = simulate(stages, PlainCosts{}, kRecord);
      // Qi et al. 2023, table 2: (p - 1)(F + B - W).
      EXPECT_DOUBLE_EQ(played.step_seconds, 3.0 * m + (p - 1)) << p << " " << m;
      const auto lanes = lanes_of(stages, played);
      for (int s = 0; s < p; ++s) EXPECT_LE(lanes[static_cast<size_t>(s)].in_flight, p - s) << "stage " << s;
      EXPECT_EQ(lanes[0].in_flight, p);
    }
  }
}

TEST(PipelineTheory, ZbVHasNoBubbleInsideAStage) {
  for (const int p : {2, 3, 4, 8}) {
    for (const int m : {2 * p, 3 * p + 1}) {
      const auto stages = pipeline(strategy_of(ScheduleKind::zb_v, p, 2), m, kEqual);
      const Simulation played = simulate(stages, PlainCosts{}, kRecord);
      const auto lanes = lanes_of(stages, played);
      for (int s = 0; s < p; ++s) {
        const Lane& lane = lanes[static_cast<size_t>(s)];
        EXPECT_DOUBLE_EQ(lane.busy, 6.0 * m);
        EXPECT_DOUBLE_EQ(lane.bubble(), 0) << p << " stages, " << m << " micro-batches, stage " << s;
        EXPECT_DOUBLE_EQ(lane.first_start, s);
        EXPECT_LE(lane.in_flight, 2 * p) << "stage " << s;  // 2p chunks are what 1F1B's stage 0 holds
      }
    }
  }
}

TEST(PipelineTheory, ClippingMakesEveryStageWaitForTheLast) {
  constexpr int kStages = 4, kMicroBatches = 8;
  PlainCosts costs;
  costs.collective = 0.5;
  for (const bool clips : {false, true}) {
    auto stages = pipeline(strategy_of(ScheduleKind::zb_v, kStages, 2), kMicroBatches, kEqual);
    add_optimizer(stages, clips, 2);
    const Simulation played = simulate(stages, costs, kRecord);
    const double work = 6.0 * kMicroBatches, skew = kStages - 1;
    const auto lanes = lanes_of(stages, played);
    for (int s = 0; s < kStages; ++s) {
      // Without the norm over all ranks a stage updates at once and could begin its next step; with it every stage's step
      // is longer by what the last stage began later.
      const Lane& lane = lanes[static_cast<size_t>(s)];
      const double expected = clips ? skew - s + work + costs.collective + 2 : work + 2;
      EXPECT_DOUBLE_EQ(lane.last_end - lane.first_start, expected) << "stage " << s;
    }
    EXPECT_DOUBLE_EQ(played.step_seconds, skew + work + (clips ? costs.collective : 0) + 2);
  }
}

TEST(PipelineTheory, SchedulesRankAsTheirTheoryDoes) {
  constexpr int kStages = 4, kMicroBatches = 12;
  const auto bubble_share = [](ScheduleKind schedule, int64_t chunks) {
    const Simulation played =
        simulate(pipeline(strategy_of(schedule, kStages, chunks), kMicroBatches, kEqual), PlainCosts{}, {});
    return played.time.bubble / played.step_seconds;
  };
  const double plain = bubble_share(ScheduleKind::one_f_one_b, 1);
  const double interleaved = bubble_share(ScheduleKind::interleaved, 2);
  const double h1 = bubble_share(ScheduleKind::zb_h1, 1), v = bubble_share(ScheduleKind::zb_v, 2);
  EXPECT_GT(plain, interleaved);
  EXPECT_GT(interleaved, h1);
  EXPECT_GT(h1, v);
}

}  // namespace
}  // namespace foresail
