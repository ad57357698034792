// Pipeline schedules: complete, consistent across stages, and with the bubbles and micro-batches in flight of their papers.
#include "program/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "tests/program/schedule_player.h"

namespace foresail {
namespace {

using testing::Buffering;
using testing::Durations;
using testing::play;
using testing::Played;

constexpr Durations kWhole{1, 2, 0};  ///< backward is not split: input and weight gradients together
constexpr Durations kSplit{1, 1, 1};
const std::vector<int64_t> kMicroBatches{1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24};

Strategy strategy_of(ScheduleKind kind, int64_t stages, int64_t chunks = 1) {
  Strategy strategy;
  strategy.pp = stages;
  strategy.schedule = kind;
  strategy.virtual_stages = chunks;
  return strategy;
}

/// Every schedule with every number of chunks that is tried.
std::vector<Strategy> all_strategies(int64_t most_stages) {
  std::vector<Strategy> all;
  for (int64_t stages = 1; stages <= most_stages; ++stages) {
    for (const ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::gpipe, ScheduleKind::zb_h1}) {
      all.push_back(strategy_of(kind, stages));
    }
    for (int64_t chunks = 2; chunks <= 4; ++chunks) {
      all.push_back(strategy_of(ScheduleKind::interleaved, stages, chunks));
    }
    all.push_back(strategy_of(ScheduleKind::zb_v, stages, 2));
  }
  return all;
}

std::vector<StageSchedule> training(const Strategy& strategy, int64_t micro_batches) {
  std::vector<StageSchedule> stages;
  for (int64_t s = 0; s < strategy.pp; ++s) stages.push_back(training_schedule(strategy, s, micro_batches));
  return stages;
}

std::vector<StageSchedule> evaluation(const Strategy& strategy, int64_t micro_batches) {
  std::vector<StageSchedule> stages;
  for (int64_t s = 0; s < strategy.pp; ++s) stages.push_back(forward_schedule(strategy, s, micro_batches));
  return stages;
}

Durations durations_of(const Strategy& strategy) { return splits_backward(strategy.schedule) ? kSplit : kWhole; }

std::string text(const Strategy& strategy, int64_t micro_batches) {
  return to_text(strategy) + ", " + std::to_string(micro_batches) + " micro-batches";
}

/// Calls `test` for every strategy and number of micro-batches.
template <typename Test>
void for_all(int64_t most_stages, const Test& test) {
  for (const Strategy& strategy : all_strategies(most_stages)) {
    for (const int64_t micro_batches : kMicroBatches) {
      SCOPED_TRACE(text(strategy, micro_batches));
      test(strategy, micro_batches);
    }
  }
}

TEST(Schedule, PlacesEveryVirtualStageOnce) {
  for (const Strategy& strategy : all_strategies(8)) {
    std::set<std::pair<int32_t, int32_t>> places;
    for (int64_t v = 0; v < virtual_stage_count(strategy); ++v) {
      const VirtualPlace place = place_of(strategy, v);
      EXPECT_EQ(virtual_stage_of(strategy, place), v);
      EXPECT_TRUE(place.stage >= 0 && place.stage < strategy.pp);
      places.emplace(place.stage, place.chunk);
    }
    EXPECT_EQ(static_cast<int64_t>(places.size()), virtual_stage_count(strategy));
  }
  EXPECT_EQ(place_of(strategy_of(ScheduleKind::zb_v, 4, 2), 4), (VirtualPlace{3, 1}));
  EXPECT_EQ(place_of(strategy_of(ScheduleKind::zb_v, 4, 2), 7), (VirtualPlace{0, 1}));
  EXPECT_EQ(place_of(strategy_of(ScheduleKind::interleaved, 4, 3), 9), (VirtualPlace{1, 2}));
}

TEST(Schedule, RunsEveryMicroBatchOncePerPhaseAndChunk) {
  for_all(6, [](const Strategy& strategy, int64_t micro_batches) {
    const bool split = splits_backward(strategy.schedule);
    for (const StageSchedule& stage : training(strategy, micro_batches)) {
      std::set<std::tuple<Phase, int32_t, int32_t>> seen;
      std::map<std::pair<Phase, int32_t>, const ScheduleEntry*> latest;
      for (const ScheduleEntry& entry : stage.entries) {
        EXPECT_TRUE(seen.emplace(entry.phase, entry.chunk, entry.micro_batch).second);
        EXPECT_TRUE(entry.chunk >= 0 && entry.chunk < strategy.virtual_stages);
        EXPECT_TRUE(entry.micro_batch >= 0 && entry.micro_batch < micro_batches);
        latest[{entry.phase, entry.chunk}] = &entry;
      }
      EXPECT_EQ(static_cast<int64_t>(seen.size()), micro_batches * strategy.virtual_stages * (split ? 3 : 2));
      for (const ScheduleEntry& entry : stage.entries) {
        EXPECT_EQ(entry.last, (latest[{entry.phase, entry.chunk}] == &entry));
      }
    }
  });
}

/// Micro-batches hold their slots without clashes, and some moment needs all of them.
void expect_slots(const StageSchedule& stage, size_t chunk, Phase first, Phase last, bool carried, int32_t slots) {
  std::map<int32_t, int32_t> holder;  // slot -> micro-batch
  size_t most = 0;
  for (const ScheduleEntry& entry : stage.entries) {
    if (static_cast<size_t>(entry.chunk) != chunk || entry.phase < first) continue;
    const int32_t slot = carried ? entry.carried_slot : entry.slot;
    EXPECT_TRUE(slot >= 0 && slot < slots);
    if (entry.phase == first) {
      EXPECT_TRUE(holder.emplace(slot, entry.micro_batch).second);
    }
    EXPECT_EQ(holder[slot], entry.micro_batch);
    most = std::max(most, holder.size());
    if (entry.phase == last) holder.erase(slot);
  }
  EXPECT_TRUE(holder.empty());
  EXPECT_EQ(static_cast<int32_t>(most), slots);
}

TEST(Schedule, SlotsNeverClashAndNoneIsSpare) {
  for_all(6, [](const Strategy& strategy, int64_t micro_batches) {
    const bool split = splits_backward(strategy.schedule);
    for (const StageSchedule& stage : training(strategy, micro_batches)) {
      for (size_t chunk = 0; chunk < stage.slots.size(); ++chunk) {
        const Phase last = split ? Phase::weight_gradient : Phase::backward;
        expect_slots(stage, chunk, Phase::forward, last, false, stage.slots[chunk]);
        if (split) {
          expect_slots(stage, chunk, Phase::backward, last, true, stage.carried_slots[chunk]);
        } else {
          EXPECT_EQ(stage.carried_slots[chunk], 0);
        }
      }
    }
  });
}

/// Whether `second` stands right behind `first` for every micro-batch.
void expect_neighbours(const StageSchedule& stage, std::pair<Phase, int32_t> first, std::pair<Phase, int32_t> second) {
  for (size_t i = 0; i < stage.entries.size(); ++i) {
    const ScheduleEntry& entry = stage.entries[i];
    if (std::pair(entry.phase, entry.chunk) != first) continue;
    ASSERT_LT(i + 1, stage.entries.size());
    const ScheduleEntry& next = stage.entries[i + 1];
    EXPECT_EQ(std::pair(next.phase, next.chunk), second);
    EXPECT_EQ(next.micro_batch, entry.micro_batch);
  }
}

TEST(Schedule, HandOversOnOneRankAreNeighbours) {
  for_all(6, [](const Strategy& strategy, int64_t micro_batches) {
    for (int64_t v = 0; v + 1 < virtual_stage_count(strategy); ++v) {
      const VirtualPlace at = place_of(strategy, v);
      const VirtualPlace next = place_of(strategy, v + 1);
      if (next.stage != at.stage) continue;
      const StageSchedule stage = training_schedule(strategy, at.stage, micro_batches);
      expect_neighbours(stage, {Phase::forward, at.chunk}, {Phase::forward, next.chunk});
      expect_neighbours(stage, {Phase::backward, next.chunk}, {Phase::backward, at.chunk});
      expect_neighbours(forward_schedule(strategy, at.stage, micro_batches), {Phase::forward, at.chunk},
                        {Phase::forward, next.chunk});
    }
  });
}

TEST(Schedule, StagesNeverWaitForEachOtherForever) {
  for_all(8, [](const Strategy& strategy, int64_t micro_batches) {
    const auto stages = training(strategy, micro_batches);
    for (const Buffering buffering : {Buffering::unlimited, Buffering::per_chunk}) {
      EXPECT_TRUE(play(strategy, stages, durations_of(strategy), buffering).finished);
    }
  });
}

/// Bubbles for equal stages, F = B = W = 1 per chunk and no communication time, with one outgoing buffer per chunk and
/// direction.
TEST(Schedule, BubblesAreThoseOfThePapers) {
  for_all(8, [](const Strategy& strategy, int64_t micro_batches) {
    const int64_t p = strategy.pp;
    const Played played =
        play(strategy, training(strategy, micro_batches), durations_of(strategy), Buffering::per_chunk);
    switch (strategy.schedule) {
      case ScheduleKind::one_f_one_b:
      case ScheduleKind::gpipe: EXPECT_EQ(played.bubble, (p - 1) * (kWhole.forward + kWhole.backward)); break;
      case ScheduleKind::interleaved:
        // A chunk takes 1 / v of the stage's F and B, so (p - 1)(F + B) / v is (p - 1) chunks.
        if (micro_batches % p == 0) {
          EXPECT_EQ(played.bubble, (p - 1) * (kWhole.forward + kWhole.backward));
        } else {  // the last group is short of micro-batches that the others wait for
          const int64_t missing = (p - micro_batches % p) * strategy.virtual_stages;
          EXPECT_LE(played.bubble, (p - 1 + missing) * (kWhole.forward + kWhole.backward));
        }
        break;
      case ScheduleKind::zb_h1:
        // (p - 1)(F + B - W); with fewer than p micro-batches the last one's way down and up again is longer.
        EXPECT_EQ(played.bubble, p == 1 ? 0 : std::max(p - 1, 2 * p - 1 - micro_batches));
        break;
      case ScheduleKind::zb_v: break;  // the next test
    }
  });
}

TEST(Schedule, ZeroBubbleVHasNoBubbleFromTwoMicroBatchesPerStageOn) {
  for (int64_t p = 1; p <= 16; ++p) {
    const Strategy strategy = strategy_of(ScheduleKind::zb_v, p, 2);
    for (const int64_t micro_batches : {2 * p, 2 * p + 1, 3 * p, 5 * p + 1}) {
      SCOPED_TRACE(text(strategy, micro_batches));
      const auto stages = training(strategy, micro_batches);
      EXPECT_EQ(play(strategy, stages, kSplit, Buffering::unlimited).bubble, 0);
      EXPECT_EQ(play(strategy, stages, kSplit, Buffering::per_chunk, 2).bubble, 0);
      // Until the first micro-batch is back a stage runs two forwards more than the next one takes: with a single outgoing
      // buffer it waits one unit per stage.
      EXPECT_EQ(play(strategy, stages, kSplit, Buffering::per_chunk, 1).bubble, p - 1);
    }
    // One micro-batch runs down and up twice: 4p units of F and B, then W, less the six that are work.
    EXPECT_EQ(play(strategy, training(strategy, 1), kSplit, Buffering::unlimited).bubble,
              std::max<int64_t>(4 * p - 5, 0));
    int64_t before = 4 * p;
    for (int64_t micro_batches = 1; micro_batches <= 2 * p; ++micro_batches) {
      const int64_t bubble = play(strategy, training(strategy, micro_batches), kSplit, Buffering::unlimited).bubble;
      EXPECT_LE(bubble, before) << text(strategy, micro_batches);
      before = bubble;
    }
  }
}

TEST(Schedule, MicroBatchesInFlightAreThoseOfThePapers) {
  for_all(8, [](const Strategy& strategy, int64_t m) {
    const int64_t p = strategy.pp, v = strategy.virtual_stages;
    const Played played = play(strategy, training(strategy, m), durations_of(strategy), Buffering::unlimited);
    for (int64_t s = 0; s < p; ++s) {
      SCOPED_TRACE("stage " + std::to_string(s));
      const int64_t most = played.in_flight[static_cast<size_t>(s)];
      switch (strategy.schedule) {
        case ScheduleKind::gpipe: EXPECT_EQ(most, m); break;
        case ScheduleKind::one_f_one_b: EXPECT_EQ(most, std::min(m, p - s)); break;
        case ScheduleKind::interleaved:
          if (p == 1) {
            EXPECT_EQ(most, v);
          } else if (m % p == 0) {
            EXPECT_EQ(most, std::min(m * v, 2 * (p - 1 - s) + (v - 1) * p + 1));
          }
          break;
        case ScheduleKind::zb_h1: EXPECT_EQ(most, std::min(m, p)); break;
        case ScheduleKind::zb_v: EXPECT_LE(most, std::min(2 * m, 2 * p)); break;
      }
    }
  });
}

TEST(Schedule, EvaluationRunsEveryChunkOnceInOneSlotAndNeverStops) {
  for_all(8, [](const Strategy& strategy, int64_t micro_batches) {
    const auto stages = evaluation(strategy, micro_batches);
    for (const StageSchedule& stage : stages) {
      std::map<int32_t, int32_t> next;
      for (const ScheduleEntry& entry : stage.entries) {
        EXPECT_EQ(entry.phase, Phase::forward);
        EXPECT_EQ(entry.micro_batch, next[entry.chunk]++);
        EXPECT_EQ(entry.slot, 0);
        EXPECT_EQ(entry.last, entry.micro_batch == micro_batches - 1);
      }
      EXPECT_EQ(static_cast<int64_t>(stage.entries.size()), micro_batches * strategy.virtual_stages);
      EXPECT_EQ(stage.slots, std::vector<int32_t>(static_cast<size_t>(strategy.virtual_stages), 1));
    }
    for (const Buffering buffering : {Buffering::per_stage, Buffering::per_chunk, Buffering::unlimited}) {
      const Played played = play(strategy, stages, {1, 0, 0}, buffering);
      EXPECT_TRUE(played.finished);
      // Nobody waits but for the first micro-batch's way and, in a V, the way back of the last one. A last group that is
      // not full makes its stages wait for each other once per chunk.
      const int64_t p = strategy.pp;
      const bool full = strategy.schedule == ScheduleKind::zb_v || micro_batches % p == 0;
      const int64_t way = strategy.schedule == ScheduleKind::zb_v ? 2 * (p - 1) : 0;
      EXPECT_LE(played.bubble, full ? way : strategy.virtual_stages * p);
    }
  });
}

TEST(Schedule, RefusesChunksThatItDoesNotRun) {
  std::string why;
  EXPECT_FALSE(schedule_fits(strategy_of(ScheduleKind::zb_v, 4, 1), 8, &why));
  EXPECT_EQ(why, "the zb-v schedule runs 2 virtual stages per stage, not 1");
  EXPECT_FALSE(schedule_fits(strategy_of(ScheduleKind::interleaved, 4, 1), 8, &why));
  EXPECT_EQ(why, "the interleaved schedule runs at least 2 virtual stages per stage, not 1");
  EXPECT_FALSE(schedule_fits(strategy_of(ScheduleKind::one_f_one_b, 4, 2), 8, nullptr));
  EXPECT_FALSE(schedule_fits(strategy_of(ScheduleKind::one_f_one_b, 4), 0, &why));
  EXPECT_FALSE(schedule_fits(strategy_of(ScheduleKind::one_f_one_b, 4), int64_t{1} << 31, &why));
  EXPECT_ANY_THROW(training_schedule(strategy_of(ScheduleKind::gpipe, 4, 2), 0, 8));
}

TEST(Schedule, LargePipelinesFinish) {
  for (const Strategy& strategy : {strategy_of(ScheduleKind::zb_v, 64, 2), strategy_of(ScheduleKind::zb_h1, 64),
                                   strategy_of(ScheduleKind::interleaved, 64, 4)}) {
    const auto stages = training(strategy, 256);
    EXPECT_TRUE(play(strategy, stages, durations_of(strategy), Buffering::per_chunk, 2).finished);
  }
}

}  // namespace
}  // namespace foresail
