// How little memory a step could need, and which bytes of the arena nothing uses.
#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "core/round_up.h"
#include "program/check.h"
#include "program/interval_set.h"
#include "program/walk.h"

namespace foresail {
namespace {

using Range = std::pair<int64_t, int64_t>;

bool contains(const Touch& outer, const Touch& inner) { return outer.begin <= inner.begin && inner.end <= outer.end; }

/// Values outside the persistent region: a write that does not accumulate starts one, whatever reads or adds to some part
/// of it extends it, and one that is written over it ends it.
class Lifetimes {
 public:
  explicit Lifetimes(const Program& program) : program_(program) {}

  void visit(const Step& step, const std::vector<Touch>& touches) {
    if (step.instruction->kind == InstructionKind::wait_send) {
      auto& sent = sent_[step.instruction->channel];
      for (; static_cast<int32_t>(sent.size()) > step.instruction->keep; sent.pop_front()) {
        extend(sent.front(), step.time);
      }
    }
    for (const Touch& touch : touches) {
      if (touch.begin < program_.arena.persistent_bytes) continue;
      if (touch.reads) extend({touch.begin, touch.end}, step.time - (becomes_part(touch, touches) ? 1 : 0));
      if (step.instruction->kind == InstructionKind::send) {
        sent_[step.instruction->channel].emplace_back(touch.begin, touch.end);
      }
    }
    for (const Touch& touch : touches) {
      if (touch.begin < program_.arena.persistent_bytes || !touch.writes || touch.reads) continue;
      const Touch* input = place_in_input(touch, touches);
      if (input != nullptr && input->begin == touch.begin && input->end == touch.end) continue;
      start({touch.begin, touch.end}, step.time + (input != nullptr ? 1 : 0), step.time);
    }
  }

  int64_t largest_sum() {
    for (const auto& [begin, value] : open_) close(begin, value);
    int64_t live = 0, largest = 0;
    for (const auto& [time, change] : changes_) {
      live += change;
      largest = std::max(largest, live);
    }
    return largest;
  }

 private:
  struct Value {
    int64_t end, first, last;
  };

  /// The input whose bytes an output takes, whole (the same memory goes on living) or in part (a reduce_scatter into this
  /// rank's part: from the next instruction on only that lives).
  static const Touch* place_in_input(const Touch& output, const std::vector<Touch>& touches) {
    const auto found = std::find_if(touches.begin(), touches.end(), [&](const Touch& other) {
      return other.reads && !other.writes && !output.workspace && contains(other, output);
    });
    return found == touches.end() ? nullptr : &*found;
  }

  /// An input that is a part of an output (an all_gather of this rank's part): from this instruction on it is that output.
  static bool becomes_part(const Touch& input, const std::vector<Touch>& touches) {
    return std::any_of(touches.begin(), touches.end(), [&](const Touch& other) {
      return other.writes && !other.workspace && contains(other, input) && !contains(input, other);
    });
  }

  void extend(const Range& range, int64_t time) {
    for (auto at = first_overlapping(range.first); at != open_.end() && at->first < range.second; ++at) {
      at->second.last = std::max(at->second.last, time);
    }
  }

  void start(const Range& range, int64_t first, int64_t last) {
    auto at = first_overlapping(range.first);
    while (at != open_.end() && at->first < range.second) {
      close(at->first, at->second);
      at = open_.erase(at);
    }
    open_[range.first] = {range.second, first, std::max(first, last)};
  }

  void close(int64_t begin, const Value& value) {
    const int64_t bytes = round_up(value.end - begin, program_.alignment);
    changes_[value.first] += bytes;
    changes_[value.last + 1] -= bytes;
  }

  std::map<int64_t, Value>::iterator first_overlapping(int64_t begin) {
    auto at = open_.upper_bound(begin);
    if (at != open_.begin() && std::prev(at)->second.end > begin) --at;
    return at;
  }

  const Program& program_;
  std::map<int64_t, Value> open_;              // disjoint, by begin
  std::map<int64_t, int64_t> changes_;         // of the live bytes, by time
  std::map<int32_t, std::deque<Range>> sent_;  // not yet waited for, by channel
};

}  // namespace

int64_t liveness_bound(const Program& program) {
  Lifetimes lifetimes(program);
  walk_step(program, false,
            [&](const Step& step, const std::vector<Touch>& touches) { lifetimes.visit(step, touches); });
  return program.arena.persistent_bytes + lifetimes.largest_sum();
}

std::vector<Segment> arena_gaps(const Program& program) {
  IntervalSet unused;
  unused.add(0, program.arena.bytes);
  for (const Segment& segment : {program.arena.step_inputs, program.arena.data}) {
    unused.remove(segment.offset, segment.offset + segment.bytes);
  }
  walk_step(program, true, [&](const Step& step, const std::vector<Touch>& touches) {
    for (const Touch& touch : touches) {
      // Other ranks touch the share that is theirs.
      const Buffer& buffer = step.block->buffers[static_cast<size_t>(touch.buffer)];
      unused.remove(touch.begin, touch.end + buffer.shard_stride * (share_ranks(program.mesh, buffer) - 1));
    }
  });
  return unused.segments();
}

}  // namespace foresail
