#include "program/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <set>
#include <utility>

#include "core/error.h"
#include "program/schedule_orders.h"

namespace foresail {
namespace {

PipelineStage pipeline_stage(const Strategy& strategy, int64_t stage, int64_t micro_batches) {
  std::string why;
  ensure(schedule_fits(strategy, micro_batches, &why), why.c_str());
  ensure(stage >= 0 && stage < strategy.pp, "a stage lies inside its pipeline");
  return {static_cast<int32_t>(strategy.pp), static_cast<int32_t>(stage), static_cast<int32_t>(strategy.virtual_stages),
          static_cast<int32_t>(micro_batches)};
}

/// The lowest numbers that are free; how many were ever needed.
class SlotPool {
 public:
  int32_t take() {
    if (free_.empty()) return needed_++;
    const int32_t slot = free_.top();
    free_.pop();
    return slot;
  }
  void give_back(int32_t slot) { free_.push(slot); }
  int32_t needed() const { return needed_; }

 private:
  std::priority_queue<int32_t, std::vector<int32_t>, std::greater<>> free_;
  int32_t needed_ = 0;
};

/// The slots of each chunk and which of them its micro-batches have.
struct Slots {
  std::vector<SlotPool> pools;             ///< by chunk
  std::vector<std::vector<int32_t>> held;  ///< [chunk][micro-batch]

  explicit Slots(const PipelineStage& at)
      : pools(static_cast<size_t>(at.chunks)),
        held(static_cast<size_t>(at.chunks), std::vector<int32_t>(static_cast<size_t>(at.micro_batches))) {}

  int32_t& of(const ScheduleEntry& entry) {
    return held[static_cast<size_t>(entry.chunk)][static_cast<size_t>(entry.micro_batch)];
  }
  void take(const ScheduleEntry& entry) { of(entry) = pools[static_cast<size_t>(entry.chunk)].take(); }
  void give_back(const ScheduleEntry& entry) { pools[static_cast<size_t>(entry.chunk)].give_back(of(entry)); }
  std::vector<int32_t> needed() const {
    std::vector<int32_t> counts;
    for (const SlotPool& pool : pools) counts.push_back(pool.needed());
    return counts;
  }
};

void assign_slots(StageSchedule& schedule, const PipelineStage& at, bool split) {
  Slots slots(at), carried(at);
  const Phase last = split ? Phase::weight_gradient : Phase::backward;
  for (ScheduleEntry& entry : schedule.entries) {
    if (entry.phase == Phase::forward) slots.take(entry);
    if (entry.phase == Phase::backward && split) carried.take(entry);
    entry.slot = slots.of(entry);
    entry.carried_slot = carried.of(entry);
    if (entry.phase != last) continue;
    slots.give_back(entry);
    if (split) carried.give_back(entry);
  }
  schedule.slots = slots.needed();
  schedule.carried_slots = carried.needed();
}

void mark_last(StageOrder& entries) {
  std::set<std::pair<Phase, int32_t>> later;
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    entry->last = later.emplace(entry->phase, entry->chunk).second;
  }
}

}  // namespace

VirtualPlace place_of(const Strategy& strategy, int64_t virtual_stage) {
  ensure(virtual_stage >= 0 && virtual_stage < virtual_stage_count(strategy), "a virtual stage lies in its pipeline");
  const int64_t chunk = virtual_stage / strategy.pp, position = virtual_stage % strategy.pp;
  const bool upwards = rule_of(strategy.schedule).placement == ChunkPlacement::vee && chunk % 2 == 1;
  return {static_cast<int32_t>(upwards ? strategy.pp - 1 - position : position), static_cast<int32_t>(chunk)};
}

int64_t virtual_stage_of(const Strategy& strategy, const VirtualPlace& place) {
  const bool upwards = rule_of(strategy.schedule).placement == ChunkPlacement::vee && place.chunk % 2 == 1;
  return place.chunk * strategy.pp + (upwards ? strategy.pp - 1 - place.stage : place.stage);
}

int64_t virtual_stage_count(const Strategy& strategy) { return strategy.pp * strategy.virtual_stages; }

bool of_micro_batch(Phase phase) {
  return phase == Phase::forward || phase == Phase::backward || phase == Phase::weight_gradient;
}

bool splits_backward(ScheduleKind schedule) { return rule_of(schedule).splits_backward; }

int64_t outgoing_buffers(ScheduleKind schedule) { return rule_of(schedule).outgoing_buffers; }

bool schedule_fits(const Strategy& strategy, int64_t micro_batches, std::string* why) {
  const ScheduleRule& rule = rule_of(strategy.schedule);
  const auto refuse = [&](std::string reason) {
    if (why != nullptr) *why = std::move(reason);
    return false;
  };
  if (strategy.virtual_stages < rule.least_chunks || strategy.virtual_stages > rule.most_chunks) {
    return refuse(fmt::format("the {} schedule runs {}{} virtual stages per stage, not {}", name_of(strategy.schedule),
                              rule.least_chunks == rule.most_chunks ? "" : "at least ", rule.least_chunks,
                              strategy.virtual_stages));
  }
  // Micro-batches of all chunks are counted in 32 bits, the interleaved ones rounded up to whole groups.
  if (micro_batches < 1) return refuse("a step has at least one micro-batch");
  if ((micro_batches + 2 * strategy.pp) * strategy.virtual_stages > std::numeric_limits<int32_t>::max()) {
    return refuse(fmt::format("{} micro-batches of {} virtual stages are too many to count", micro_batches,
                              strategy.virtual_stages));
  }
  return true;
}

StageSchedule training_schedule(const Strategy& strategy, int64_t stage, int64_t micro_batches) {
  const PipelineStage at = pipeline_stage(strategy, stage, micro_batches);
  const ScheduleRule& rule = rule_of(strategy.schedule);
  StageSchedule schedule{rule.training(at), {}, {}};
  assign_slots(schedule, at, rule.splits_backward);
  mark_last(schedule.entries);
  return schedule;
}

StageSchedule forward_schedule(const Strategy& strategy, int64_t stage, int64_t micro_batches) {
  const PipelineStage at = pipeline_stage(strategy, stage, micro_batches);
  const auto chunks = static_cast<size_t>(at.chunks);
  StageSchedule schedule{rule_of(strategy.schedule).forward(at), std::vector<int32_t>(chunks, 1),
                         std::vector<int32_t>(chunks, 0)};
  mark_last(schedule.entries);
  return schedule;
}

}  // namespace foresail
