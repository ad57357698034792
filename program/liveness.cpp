// How little memory a step could need, and which bytes of the arena nothing uses.
#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "program/check.h"
#include "program/walk.h"

namespace foresail {
namespace {

using Range = std::pair<int64_t, int64_t>;

struct Lifetime {
  int64_t bytes, first, last;
};

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// Values outside the persistent region: a write that does not accumulate starts one, reads extend it.
class Lifetimes {
 public:
  explicit Lifetimes(const Program& program) : program_(program) {}

  void visit(const Step& step, const std::vector<Touch>& touches) {
    if (step.instruction->kind == InstructionKind::wait_send) {
      for (const Range& range : outstanding_[step.instruction->channel]) extend(range, step.time);
      outstanding_[step.instruction->channel].clear();
    }
    for (const Touch& touch : touches) {
      if (touch.begin < program_.arena.persistent_bytes) continue;
      const Range range{touch.begin, touch.end};
      if (touch.reads) extend(range, step.time);
      if (touch.writes && !touch.reads && !is_in_place(touch, touches)) start(range, step.time);
      if (step.instruction->kind == InstructionKind::send) outstanding_[step.instruction->channel].push_back(range);
    }
  }

  int64_t largest_sum() {
    for (const auto& [range, lifetime] : open_) closed_.push_back(lifetime);
    std::map<int64_t, int64_t> changes;
    for (const Lifetime& lifetime : closed_) {
      changes[lifetime.first] += lifetime.bytes;
      changes[lifetime.last + 1] -= lifetime.bytes;
    }
    int64_t live = 0, largest = 0;
    for (const auto& [time, change] : changes) {
      live += change;
      largest = std::max(largest, live);
    }
    return largest;
  }

 private:
  /// The output takes an input's buffer: the same memory goes on living.
  static bool is_in_place(const Touch& output, const std::vector<Touch>& touches) {
    return std::any_of(touches.begin(), touches.end(), [&](const Touch& other) {
      return other.reads && other.begin == output.begin && other.end == output.end;
    });
  }

  void extend(const Range& range, int64_t time) {
    if (const auto found = open_.find(range); found != open_.end()) found->second.last = time;
  }

  void start(const Range& range, int64_t time) {
    const int64_t bytes = round_up(range.second - range.first, program_.alignment);
    if (const auto found = open_.find(range); found != open_.end()) closed_.push_back(found->second);
    open_[range] = {bytes, time, time};
  }

  const Program& program_;
  std::map<Range, Lifetime> open_;
  std::vector<Lifetime> closed_;
  std::map<int32_t, std::vector<Range>> outstanding_;  // sent, not yet waited for, by channel
};

}  // namespace

int64_t liveness_bound(const Program& program) {
  Lifetimes lifetimes(program);
  walk_step(program, false,
            [&](const Step& step, const std::vector<Touch>& touches) { lifetimes.visit(step, touches); });
  return program.arena.persistent_bytes + lifetimes.largest_sum();
}

std::vector<Segment> arena_gaps(const Program& program) {
  std::vector<Range> used{
      {program.arena.step_inputs.offset, program.arena.step_inputs.offset + program.arena.step_inputs.bytes},
      {program.arena.data.offset, program.arena.data.offset + program.arena.data.bytes}};
  walk_step(program, true, [&](const Step&, const std::vector<Touch>& touches) {
    for (const Touch& touch : touches) used.emplace_back(touch.begin, touch.end);
  });
  std::sort(used.begin(), used.end());
  std::vector<Segment> gaps;
  int64_t covered = 0;
  for (const auto& [begin, end] : used) {
    if (begin > covered) gaps.push_back({covered, begin - covered});
    covered = std::max(covered, end);
  }
  if (covered < program.arena.bytes) gaps.push_back({covered, program.arena.bytes - covered});
  return gaps;
}

}  // namespace foresail
