#include "tests/program/schedule_player.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace foresail::testing {
namespace {

/// One execution, named by its virtual stage.
using Key = std::tuple<Phase, int64_t, int32_t>;
struct Span {
  int64_t taken = 0, end = -1;  ///< when it took its input, when it was over (-1: not yet)
};

class Player {
 public:
  Player(const Strategy& strategy, const std::vector<StageSchedule>& stages, const Durations& durations,
         Buffering buffering, int outgoing_buffers)
      : strategy_(strategy),
        stages_(stages),
        durations_(durations),
        buffering_(buffering),
        outgoing_buffers_(static_cast<size_t>(outgoing_buffers)),
        states_(stages.size()) {}

  Played run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t s = 0; s < stages_.size(); ++s) {
        while (advance(static_cast<int32_t>(s))) moved = true;
      }
    }
    Played played{true, 0, {}};
    for (size_t s = 0; s < stages_.size(); ++s) {
      played.finished = played.finished && states_[s].next == stages_[s].entries.size();
      played.bubble = std::max(played.bubble, states_[s].now - states_[s].begun - states_[s].busy);
      played.in_flight.push_back(most_in_flight(stages_[s].entries));
    }
    return played;
  }

 private:
  struct State {
    size_t next = 0;
    int64_t now = 0, begun = -1, busy = 0;
    std::map<std::pair<Phase, int32_t>, std::vector<Key>> sent;  // received executions, by (direction, buffer)
  };

  int64_t duration(Phase phase) const {
    return phase == Phase::forward    ? durations_.forward
           : phase == Phase::backward ? durations_.backward
                                      : durations_.weight_gradient;
  }

  /// When `key` is over; nothing if it has not run.
  std::optional<int64_t> end_of(const Key& key) const {
    const auto found = played_.find(key);
    return found == played_.end() || found->second.end < 0 ? std::nullopt : std::optional(found->second.end);
  }

  std::vector<Key> inputs_of(Phase phase, int64_t at, int32_t m) const {
    if (phase == Phase::weight_gradient) return {{Phase::backward, at, m}};
    if (phase == Phase::forward) return at == 0 ? std::vector<Key>{} : std::vector<Key>{{Phase::forward, at - 1, m}};
    std::vector<Key> inputs{{Phase::forward, at, m}};
    if (at + 1 < virtual_stage_count(strategy_)) inputs.push_back({Phase::backward, at + 1, m});
    return inputs;
  }

  /// The execution on another stage that takes what this one sends.
  std::optional<Key> receiver(int32_t stage, Phase phase, int64_t at, int32_t m) const {
    const int64_t to = phase == Phase::forward ? at + 1 : at - 1;
    if (phase == Phase::weight_gradient || to < 0 || to >= virtual_stage_count(strategy_)) return std::nullopt;
    if (place_of(strategy_, to).stage == stage) return std::nullopt;
    return Key{phase, to, m};
  }

  bool advance(int32_t s) {
    State& state = states_[s];
    if (state.next == stages_[s].entries.size()) return false;
    const ScheduleEntry& entry = stages_[s].entries[state.next];
    const int64_t at = virtual_stage_of(strategy_, {s, entry.chunk});
    int64_t start = state.now;
    for (const Key& input : inputs_of(entry.phase, at, entry.micro_batch)) {
      const auto ready = end_of(input);
      if (!ready) return false;
      start = std::max(start, *ready);
    }
    const Key key{entry.phase, at, entry.micro_batch};
    if (buffering_ == Buffering::per_stage) played_.try_emplace(key, Span{start});
    const auto message = receiver(s, entry.phase, at, entry.micro_batch);
    auto& sent = state.sent[{entry.phase, buffering_ == Buffering::per_stage ? 0 : entry.chunk}];
    if (message && buffering_ != Buffering::unlimited && sent.size() >= outgoing_buffers_) {
      const auto taken = played_.find(sent[sent.size() - outgoing_buffers_]);
      if (taken == played_.end()) return false;
      start = std::max(start, taken->second.taken);
    }
    if (message) sent.push_back(*message);
    if (state.begun < 0) state.begun = start;
    state.now = start + duration(entry.phase);
    state.busy += duration(entry.phase);
    played_.try_emplace(key, Span{start}).first->second.end = state.now;
    ++state.next;
    return true;
  }

  int most_in_flight(const std::vector<ScheduleEntry>& entries) const {
    const Phase end = splits_backward(strategy_.schedule) ? Phase::weight_gradient : Phase::backward;
    int now = 0, most = 0;
    for (const ScheduleEntry& entry : entries) {
      if (entry.phase == Phase::forward) most = std::max(most, ++now);
      if (entry.phase == end) --now;
    }
    return most;
  }

  const Strategy& strategy_;
  const std::vector<StageSchedule>& stages_;
  const Durations durations_;
  const Buffering buffering_;
  const size_t outgoing_buffers_;
  std::vector<State> states_;
  std::map<Key, Span> played_;  // begun
};

}  // namespace

Played play(const Strategy& strategy, const std::vector<StageSchedule>& stages, const Durations& durations,
            Buffering buffering, int outgoing_buffers) {
  return Player(strategy, stages, durations, buffering, outgoing_buffers).run();
}

}  // namespace foresail::testing
