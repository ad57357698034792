// Communication between the stages of a pipeline: what is sent is received, in the same order on both sides, and no two
// stages wait for each other.
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

#include "program/check.h"
#include "program/check_parts.h"

namespace foresail {
namespace {

struct CommEvent {
  InstructionKind kind{};
  int32_t peer = 0, tag = 0, channel = 0, keep = 0;
  int64_t bytes = 0;
  GroupKind group{};
};

bool between_stages(const Program& program, const Instruction& instruction) {
  if (instruction.kind == InstructionKind::op) return false;
  if (!is_collective(instruction.kind)) return true;
  return program.mesh.pp > 1 && (instruction.group == GroupKind::world || instruction.group == GroupKind::embedding);
}

/// What a stage communicates with other stages, in order.
std::vector<CommEvent> events_of(const Program& program) {
  std::vector<std::vector<const Instruction*>> of_block;  // most blocks have none: a step is walked once per stage
  for (const Block& block : program.blocks) {
    auto& list = of_block.emplace_back();
    for (const Instruction& instruction : block.instructions) {
      if (between_stages(program, instruction)) list.push_back(&instruction);
    }
  }
  std::vector<CommEvent> events;
  walk_calls(program, false, [&](const ScheduleEntry& entry, const Call& call, const Block& block) {
    for (const Instruction* instruction : of_block[static_cast<size_t>(call.block)]) {
      events.push_back({instruction->kind, instruction->peer_stage,
                        message_tag(program, instruction->channel, entry.micro_batch), instruction->channel,
                        instruction->keep, communication_bytes(block, *instruction), instruction->group});
    }
  });
  return events;
}

/// The Programs are stages 0, 1, ... of one mesh and hold every virtual stage and every layer once.
std::vector<std::string> check_stages(std::span<const Program> stages) {
  Problems problems;
  const Program& first = stages.front();
  std::map<int32_t, const Chunk*> by_virtual_stage;
  for (size_t s = 0; s < stages.size(); ++s) {
    const Program& stage = stages[s];
    check_indices(stage, problems);
    if (stage.stage != static_cast<int32_t>(s) || stage.mesh != first.mesh ||
        stage.mesh.pp != static_cast<int32_t>(stages.size()) || stage.chunks.size() != first.chunks.size() ||
        stage.micro_batches != first.micro_batches || stage.global_batch != first.global_batch ||
        stage.rows_per_micro_batch != first.rows_per_micro_batch || stage.sequence_length != first.sequence_length ||
        stage.zero_stage != first.zero_stage || stage.name != first.name) {
      problems.add(fmt::format("stage {} is not stage {} of the same pipeline", stage.stage, s));
    }
    for (const Chunk& chunk : stage.chunks) {
      if (!by_virtual_stage.emplace(chunk.virtual_stage, &chunk).second) {
        problems.add(fmt::format("virtual stage {} exists twice", chunk.virtual_stage));
      }
    }
  }
  int32_t expected = 0, layer = 0;
  for (const auto& [virtual_stage, chunk] : by_virtual_stage) {
    if (virtual_stage != expected++) problems.add(fmt::format("virtual stage {} is missing", expected - 1));
    if (chunk->first_layer != layer) {
      problems.add(
          fmt::format("virtual stage {} begins with layer {} instead of {}", virtual_stage, chunk->first_layer, layer));
    }
    layer = chunk->first_layer + chunk->layers;
  }
  return problems.take();
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
    int32_t tag;
    int64_t bytes;
  };

  bool advance(int s) {
    StageState& stage = stages_[static_cast<size_t>(s)];
    const CommEvent* event = stage.current();
    if (event == nullptr) return false;
    switch (event->kind) {
      case InstructionKind::send: {
        if (!has_peer(s, *event, "sends to")) return false;
        wires_[{s, event->peer, event->channel}].push_back({event->tag, event->bytes});
        ++stage.outstanding[event->channel];
        break;
      }
      case InstructionKind::receive: {
        if (!has_peer(s, *event, "receives from")) return false;
        auto& wire = wires_[{event->peer, s, event->channel}];
        if (wire.empty()) return false;
        const Message message = wire.front();
        wire.pop_front();
        if (message.tag != event->tag || message.bytes != event->bytes) {
          problems_.push_back(fmt::format("stage {} receives message {} of {} bytes where stage {} sent {} of {} bytes",
                                          s, event->tag, event->bytes, event->peer, message.tag, message.bytes));
          return false;
        }
        --stages_[static_cast<size_t>(event->peer)].outstanding[event->channel];
        break;
      }
      case InstructionKind::wait_send:
        if (stage.outstanding[event->channel] > event->keep) return false;
        break;
      default: return false;  // a collective over stages: meet()
    }
    ++stage.next;
    return true;
  }

  bool has_peer(int s, const CommEvent& event, const char* what) {
    if (event.peer >= 0 && event.peer < static_cast<int>(stages_.size()) && event.peer != s) return true;
    problems_.push_back(fmt::format("stage {} {} stage {}, which is itself or does not exist", s, what, event.peer));
    return false;
  }

  /// One collective that all its members have reached.
  bool meet() {
    for (const GroupKind group : {GroupKind::world, GroupKind::embedding}) {
      std::vector<size_t> members{0, stages_.size() - 1};
      if (group == GroupKind::world) {
        members.clear();
        for (size_t s = 0; s < stages_.size(); ++s) members.push_back(s);
      }
      const auto there = [&](size_t s) {
        const CommEvent* event = stages_[s].current();
        return event != nullptr && event->group == group && is_collective(event->kind);
      };
      if (!std::all_of(members.begin(), members.end(), there)) continue;
      const CommEvent first = *stages_[members.front()].current();
      for (const size_t s : members) {
        if (stages_[s].current()->bytes != first.bytes || stages_[s].current()->kind != first.kind) {
          problems_.push_back(
              fmt::format("stages {} and {} meet in a collective with different operands", members.front(), s));
          return false;
        }
      }
      for (const size_t s : members) ++stages_[s].next;
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

std::vector<std::string> check_pipeline(std::span<const Program> stages) {
  if (stages.empty()) return {"a pipeline has at least one stage"};
  std::vector<std::string> problems = check_stages(stages);
  return problems.empty() ? Play(stages).run() : problems;
}

}  // namespace foresail
