// The schedule of a Program: micro-batches, slots, neighbours, the order of a step's phases.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "program/check_parts.h"
#include "program/interval_set.h"
#include "program/schedule.h"

namespace foresail {
namespace {

class ScheduleCheck {
 public:
  ScheduleCheck(const Program& program, Problems& problems)
      : program_(program),
        problems_(problems),
        trains_(runs(Phase::backward)),
        splits_(runs(Phase::weight_gradient)),
        held_(program.chunks.size()) {}

  void run() {
    for (const ScheduleEntry& entry : program_.schedule) {
      if (of_micro_batch(entry.phase)) visit(entry);
    }
    check_complete();
    check_last_marks();
    check_neighbours();
    check_step_phases();
  }

 private:
  struct Holder {
    int32_t micro_batch;
    int64_t offset;
    bool operator==(const Holder&) const = default;
  };
  using SlotsHeld = std::map<int32_t, Holder>;
  /// What the slots of a chunk hold.
  struct Held {
    SlotsHeld slots, delayed, carried;
  };

  bool has_calls(Phase phase) const {
    const auto& lists = program_.calls[static_cast<size_t>(phase)];
    return std::any_of(lists.begin(), lists.end(), [](const auto& list) { return !list.empty(); });
  }

  /// Whether the Program has calls for a phase, or schedules it.
  bool runs(Phase phase) const {
    return has_calls(phase) || std::any_of(program_.schedule.begin(), program_.schedule.end(),
                                           [&](const ScheduleEntry& entry) { return entry.phase == phase; });
  }

  /// "micro-batch 3", and which chunk if there are several.
  std::string named(const ScheduleEntry& entry) const {
    if (program_.chunks.size() == 1) return fmt::format("micro-batch {}", entry.micro_batch);
    return fmt::format("micro-batch {} of chunk {}", entry.micro_batch, entry.chunk);
  }

  /// Slots of all chunks lie in one range: what counts is whether another micro-batch is in the same bytes.
  void take(SlotsHeld& slots, int32_t slot, const Segment& bytes, const ScheduleEntry& entry, const char* what) {
    const bool free = slots.try_emplace(slot, Holder{entry.micro_batch, bytes.offset}).second;
    if (!free || taken_.overlaps(bytes.offset, bytes.offset + bytes.bytes)) {
      problems_.add(fmt::format("{} {} is taken when {} enters it", what, slot, named(entry)));
    }
    if (bytes.offset < 0 || bytes.offset + bytes.bytes > program_.arena.slots.bytes) {
      problems_.add(fmt::format("{} {} of {} leaves the segment of slots", what, slot, named(entry)));
    }
    taken_.add(bytes.offset, bytes.offset + bytes.bytes);
  }

  bool holds(const SlotsHeld& slots, int32_t slot, const Segment& bytes, const ScheduleEntry& entry, const char* what) {
    const auto found = slots.find(slot);
    if (found != slots.end() && found->second == Holder{entry.micro_batch, bytes.offset}) return true;
    problems_.add(fmt::format("{} runs {} in a {} that does not hold it", named(entry), name_of(entry.phase), what));
    return false;
  }

  void leave(SlotsHeld& slots, int32_t slot, const Segment& bytes) {
    slots.erase(slot);
    taken_.remove(bytes.offset, bytes.offset + bytes.bytes);
  }

  void visit(const ScheduleEntry& entry) {
    if (!done_.emplace(entry.phase, entry.chunk, entry.micro_batch).second) {
      problems_.add(fmt::format("{} runs {} twice", named(entry), name_of(entry.phase)));
    }
    if (!trains_) return;
    Held& held = held_[static_cast<size_t>(entry.chunk)];
    const Chunk& chunk = program_.chunks[static_cast<size_t>(entry.chunk)];
    const Segment slot{entry.slot_offset, chunk.slot_bytes};
    const Segment delayed{entry.delayed_offset, chunk.delayed_bytes};
    const Segment carried{entry.carried_offset, chunk.carried_bytes};
    if (entry.phase == Phase::forward) {
      take(held.slots, entry.slot, slot, entry, "slot");
      if (splits_) take(held.delayed, entry.slot, delayed, entry, "delayed part of slot");
      return;
    }
    if (entry.phase == Phase::weight_gradient && done_.count({Phase::backward, entry.chunk, entry.micro_batch}) == 0) {
      problems_.add(fmt::format("{} runs weight_gradient before backward", named(entry)));
    }
    if (entry.phase == Phase::backward) {
      if (holds(held.slots, entry.slot, slot, entry, "slot")) leave(held.slots, entry.slot, slot);
      if (splits_ && chunk.carried_slots > 0) take(held.carried, entry.carried_slot, carried, entry, "carried slot");
      return;
    }
    if (holds(held.delayed, entry.slot, delayed, entry, "slot")) leave(held.delayed, entry.slot, delayed);
    if (chunk.carried_slots == 0) return;
    if (holds(held.carried, entry.carried_slot, carried, entry, "carried slot")) {
      leave(held.carried, entry.carried_slot, carried);
    }
  }

  void check_complete() {
    std::map<std::pair<Phase, int32_t>, int64_t> count;
    for (const auto& [phase, chunk, micro_batch] : done_) ++count[{phase, chunk}];
    const std::pair<Phase, bool> expected[] = {
        {Phase::forward, true}, {Phase::backward, trains_}, {Phase::weight_gradient, splits_}};
    for (const auto& [phase, wanted] : expected) {
      for (size_t chunk = 0; wanted && chunk < program_.chunks.size(); ++chunk) {
        const int64_t ran = count[{phase, static_cast<int32_t>(chunk)}];
        if (ran == program_.micro_batches) continue;
        const std::string of = program_.chunks.size() == 1 ? "" : fmt::format(" in chunk {}", chunk);
        problems_.add(fmt::format("{} of {} micro-batches run {}{}", ran, program_.micro_batches, name_of(phase), of));
      }
    }
  }

  void check_last_marks() {
    std::set<std::pair<Phase, int32_t>> later;
    for (auto entry = program_.schedule.rbegin(); entry != program_.schedule.rend(); ++entry) {
      if (!of_micro_batch(entry->phase)) continue;
      if (entry->last != later.emplace(entry->phase, entry->chunk).second) {
        problems_.add(
            fmt::format("{} is wrongly marked as the last of {}, or not marked", named(*entry), name_of(entry->phase)));
      }
    }
  }

  /// Hidden states and their gradient pass from chunk to chunk through scratch, so nothing may come between.
  void check_neighbours() {
    std::map<int32_t, int32_t> chunk_at;  // virtual stage -> chunk
    for (size_t c = 0; c < program_.chunks.size(); ++c) {
      chunk_at[program_.chunks[c].virtual_stage] = static_cast<int32_t>(c);
    }
    for (const auto& [virtual_stage, chunk] : chunk_at) {
      const auto next = chunk_at.find(virtual_stage + 1);
      if (next != chunk_at.end()) {
        check_followed({Phase::forward, chunk}, {Phase::forward, next->second});
        if (trains_) check_followed({Phase::backward, next->second}, {Phase::backward, chunk});
      }
    }
  }

  void check_followed(std::pair<Phase, int32_t> first, std::pair<Phase, int32_t> second) {
    for (size_t i = 0; i < program_.schedule.size(); ++i) {
      const ScheduleEntry& entry = program_.schedule[i];
      if (std::pair(entry.phase, entry.chunk) != first) continue;
      const ScheduleEntry* next = i + 1 < program_.schedule.size() ? &program_.schedule[i + 1] : nullptr;
      if (next != nullptr && std::pair(next->phase, next->chunk) == second && next->micro_batch == entry.micro_batch) {
        continue;
      }
      problems_.add(fmt::format("{} of {} is not followed by {} of the chunk that takes its hidden states over",
                                name_of(first.first), named(entry), name_of(second.first)));
    }
  }

  /// begin_step, micro-batches, reduce_gradients, grad_norm, update: each once where the Program has calls for it.
  void check_step_phases() {
    std::map<Phase, int> count;
    Phase before = Phase::begin_step;
    for (const ScheduleEntry& entry : program_.schedule) {
      ++count[entry.phase];
      const Phase order = of_micro_batch(entry.phase) ? Phase::forward : entry.phase;
      if (entry.phase == Phase::startup) problems_.add("startup is no part of a step");
      if (order < before) problems_.add(fmt::format("{} comes after {}", name_of(entry.phase), name_of(before)));
      before = std::max(before, order);
    }
    for (const Phase phase : {Phase::begin_step, Phase::reduce_gradients, Phase::grad_norm, Phase::update}) {
      if (count[phase] > 1) problems_.add(fmt::format("{} runs {} times in a step", name_of(phase), count[phase]));
      if (count[phase] == 0 && has_calls(phase)) problems_.add(fmt::format("{} never runs", name_of(phase)));
    }
    if (trains_ && (program_.schedule.empty() || program_.schedule.front().phase != Phase::begin_step)) {
      problems_.add("a training step does not begin with begin_step");
    }
  }

  const Program& program_;
  Problems& problems_;
  const bool trains_, splits_;
  std::vector<Held> held_;  ///< by chunk
  IntervalSet taken_;       ///< bytes of the slots in use
  std::set<std::tuple<Phase, int32_t, int32_t>> done_;
};

}  // namespace

void check_schedule(const Program& program, Problems& problems) { ScheduleCheck(program, problems).run(); }

}  // namespace foresail
