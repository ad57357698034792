// Communication between the stages of a pipeline: what is sent is received, in the same order on both sides, and no two
// stages wait for each other.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

#include "core/error.h"
#include "program/check.h"
#include "program/walk.h"

namespace foresail {
namespace {

struct CommEvent {
  InstructionKind kind{};
  int32_t peer = 0, tag = 0, channel = 0;
  int64_t bytes = 0;
  GroupKind group{};
};

/// What a stage communicates with other stages, in order.
std::vector<CommEvent> events_of(const Program& program) {
  std::vector<CommEvent> events;
  walk_step(program, false, [&](const Step& step, const std::vector<Touch>&) {
    const Instruction& instruction = *step.instruction;
    if (instruction.kind == InstructionKind::op) return;
    const bool collective =
        instruction.kind == InstructionKind::all_reduce || instruction.kind == InstructionKind::all_gather;
    if (collective && (instruction.group == GroupKind::data || instruction.group == GroupKind::tensor)) return;
    events.push_back({instruction.kind, instruction.peer_stage,
                      message_tag(instruction.channel, step.entry->micro_batch), instruction.channel,
                      communication_bytes(*step.block, instruction), instruction.group});
  });
  return events;
}

/// Plays the communication of all stages: sends are posted at once, receives and waits block, collectives meet.
class Play {
 public:
  explicit Play(std::span<const Program> stages) {
    for (const Program& stage : stages) stages_.push_back({events_of(stage), 0, {}});
  }

  std::vector<std::string> run() {
    bool moved = true;
    while (moved && problems_.empty()) {
      moved = false;
      for (size_t s = 0; s < stages_.size(); ++s) {
        while (problems_.empty() && advance(static_cast<int>(s))) moved = true;
      }
      if (!moved) moved = meet();
    }
    if (problems_.empty()) report_stuck();
    if (problems_.empty()) report_unreceived();
    return problems_;
  }

 private:
  struct StageState {
    std::vector<CommEvent> events;
    size_t next = 0;
    std::map<int32_t, int> outstanding;  // sends not yet received, by channel
    const CommEvent* current() const { return next < events.size() ? &events[next] : nullptr; }
  };
  struct Message {
    int32_t tag, channel;
    int64_t bytes;
  };

  bool advance(int s) {
    StageState& stage = stages_[s];
    const CommEvent* event = stage.current();
    if (event == nullptr) return false;
    switch (event->kind) {
      case InstructionKind::send: {
        if (event->peer < 0 || event->peer >= static_cast<int>(stages_.size())) {
          problems_.push_back(fmt::format("stage {} sends to stage {}, which does not exist", s, event->peer));
          return false;
        }
        wires_[{s, event->peer, event->channel}].push_back({event->tag, event->channel, event->bytes});
        ++stage.outstanding[event->channel];
        break;
      }
      case InstructionKind::receive: {
        auto& wire = wires_[{event->peer, s, event->channel}];
        if (wire.empty()) return false;
        const Message message = wire.front();
        wire.pop_front();
        if (message.tag != event->tag || message.bytes != event->bytes) {
          problems_.push_back(fmt::format("stage {} receives message {} of {} bytes where stage {} sent {} of {} bytes",
                                          s, event->tag, event->bytes, event->peer, message.tag, message.bytes));
          return false;
        }
        --stages_[event->peer].outstanding[message.channel];
        break;
      }
      case InstructionKind::wait_send:
        if (stage.outstanding[event->channel] > 0) return false;
        break;
      default: return false;  // a collective over stages: meet()
    }
    ++stage.next;
    return true;
  }

  /// One collective that all its members have reached.
  bool meet() {
    for (const GroupKind group : {GroupKind::world, GroupKind::embedding}) {
      std::vector<int> members;
      if (group == GroupKind::world) {
        for (size_t s = 0; s < stages_.size(); ++s) members.push_back(static_cast<int>(s));
      } else {
        members = {0, static_cast<int>(stages_.size()) - 1};
      }
      const auto there = [&](int s) {
        const CommEvent* event = stages_[s].current();
        return event != nullptr && event->group == group &&
               (event->kind == InstructionKind::all_reduce || event->kind == InstructionKind::all_gather);
      };
      if (!std::all_of(members.begin(), members.end(), there)) continue;
      const CommEvent first = *stages_[members.front()].current();
      for (const int s : members) {
        if (stages_[s].current()->bytes != first.bytes || stages_[s].current()->kind != first.kind) {
          problems_.push_back(
              fmt::format("stages {} and {} meet in a collective with different operands", members.front(), s));
          return false;
        }
      }
      for (const int s : members) ++stages_[s].next;
      return true;
    }
    return false;
  }

  void report_stuck() {
    for (size_t s = 0; s < stages_.size(); ++s) {
      if (stages_[s].current() == nullptr) continue;
      problems_.push_back(fmt::format("deadlock: stage {} waits forever at communication {} of {}", s, stages_[s].next,
                                      stages_[s].events.size()));
    }
  }

  void report_unreceived() {
    for (const auto& [key, wire] : wires_) {
      if (!wire.empty()) {
        problems_.push_back(fmt::format("stage {} sends {} messages to stage {} that are never received",
                                        std::get<0>(key), wire.size(), std::get<1>(key)));
      }
    }
  }

  std::vector<StageState> stages_;
  std::map<std::tuple<int, int, int32_t>, std::deque<Message>> wires_;
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> check_pipeline(std::span<const Program> stages) { return Play(stages).run(); }

}  // namespace foresail
