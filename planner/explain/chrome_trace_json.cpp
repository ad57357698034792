#include <algorithm>
#include <array>
#include <map>
#include <string>

#include "core/json.h"
#include "planner/explain/explain.h"

namespace foresail {
namespace {

constexpr size_t kMostEvents = 200000;
constexpr double kMicroseconds = 1e6;

std::string_view name_of_queue(Queue queue) {
  constexpr std::array<std::string_view, 5> kNames = {"compute", "inline_comm", "bulk_comm", "pipeline", "host_copy"};
  return kNames.at(static_cast<size_t>(queue));
}

std::string name_of_instruction(const Instruction& instruction) {
  switch (instruction.kind) {
    case InstructionKind::op: return std::string(name_of(instruction.op));
    case InstructionKind::all_reduce: return "all_reduce";
    case InstructionKind::all_gather: return "all_gather";
    case InstructionKind::reduce_scatter: return "reduce_scatter";
    case InstructionKind::all_to_all: return "all_to_all";
    case InstructionKind::ring_shift: return "ring_shift";
    case InstructionKind::send: return "send to stage " + std::to_string(instruction.peer_stage);
    case InstructionKind::receive: return "receive from stage " + std::to_string(instruction.peer_stage);
    case InstructionKind::wait_send: return "wait_send";
  }
  return "";
}

const Call& call_of(const Program& program, const SimulatedEvent& event) {
  return program
      .calls[static_cast<size_t>(event.phase)][static_cast<size_t>(event.chunk)][static_cast<size_t>(event.call)];
}

/// Runs of one block on one queue become one event.
std::vector<SimulatedEvent> per_block(const std::vector<SimulatedEvent>& events) {
  std::vector<SimulatedEvent> merged;
  std::map<std::pair<int32_t, Queue>, size_t> last;
  for (const SimulatedEvent& event : events) {
    const auto found = last.find({event.stage, event.queue});
    if (found != last.end()) {
      SimulatedEvent& before = merged[found->second];
      if (before.phase == event.phase && before.chunk == event.chunk && before.call == event.call &&
          before.micro_batch == event.micro_batch) {
        before.end_seconds = event.end_seconds;
        continue;
      }
    }
    last[{event.stage, event.queue}] = merged.size();
    merged.push_back(event);
    merged.back().instruction = -1;
  }
  return merged;
}

Json event_json(const Program& program, const SimulatedEvent& event) {
  const Call& call = call_of(program, event);
  const Block& block = program.blocks[static_cast<size_t>(call.block)];
  Json json;
  json["name"] = event.instruction < 0
                     ? block.name
                     : name_of_instruction(block.instructions[static_cast<size_t>(event.instruction)]);
  json["cat"] = std::string(name_of(event.phase));
  json["ph"] = "X";
  json["ts"] = event.begin_seconds * kMicroseconds;
  json["dur"] = (event.end_seconds - event.begin_seconds) * kMicroseconds;
  json["pid"] = event.stage;
  json["tid"] = static_cast<int>(event.queue);
  json["args"] = {
      {"block", block.name}, {"layer", call.layer}, {"chunk", event.chunk}, {"micro_batch", event.micro_batch}};
  return json;
}

Json name_json(const char* what, int32_t stage, int thread, const std::string& name) {
  Json json = {{"name", what}, {"ph", "M"}, {"pid", stage}, {"tid", thread}};
  json["args"]["name"] = name;
  return json;
}

/// A micro-batch's slot of a chunk is held from the first forward event to the last backward (or weight gradient) event;
/// what it carries in between, from the first backward to the last weight gradient event.
void add_counters(std::span<const Program> programs, const std::vector<SimulatedEvent>& events, Json& list) {
  struct Span {
    double begin = 0, end = 0;
    bool seen = false;
    void extend(const SimulatedEvent& event) {
      if (!seen) begin = event.begin_seconds;
      seen = true;
      end = std::max(end, event.end_seconds);
    }
  };
  struct Held {
    Span slot, carried;
  };
  std::map<std::array<int32_t, 3>, Held> spans;  // by stage, chunk, micro-batch
  for (const SimulatedEvent& event : events) {
    const bool forward = event.phase == Phase::forward;
    if (!forward && event.phase != Phase::backward && event.phase != Phase::weight_gradient) continue;
    Held& held = spans[{event.stage, event.chunk, event.micro_batch}];
    held.slot.extend(event);
    if (!forward) held.carried.extend(event);
  }
  std::map<std::pair<int32_t, double>, int64_t> changes;
  for (const auto& [at, held] : spans) {
    const Chunk& chunk = programs[static_cast<size_t>(at[0])].chunks[static_cast<size_t>(at[1])];
    for (const auto& [span, bytes] : {std::pair(held.slot, chunk.slot_bytes), {held.carried, chunk.carried_bytes}}) {
      changes[{at[0], span.begin}] += bytes;
      changes[{at[0], span.end}] -= bytes;
    }
  }
  int32_t stage = -1;
  int64_t held = 0;
  for (const auto& [at, bytes] : changes) {
    if (at.first != stage) stage = at.first, held = 0;
    held += bytes;
    Json json = {{"name", "activations kept"}, {"ph", "C"}, {"ts", at.second * kMicroseconds}, {"pid", stage}};
    json["args"]["bytes"] = held;
    list.push_back(std::move(json));
  }
}

}  // namespace

std::string chrome_trace(std::span<const Program> programs, const Simulation& simulation) {
  Json list = Json::array();
  for (size_t stage = 0; stage < programs.size(); ++stage) {
    const auto pid = static_cast<int32_t>(stage);
    list.push_back(name_json("process_name", pid, 0, "stage " + std::to_string(stage)));
    for (int queue = 0; queue < 5; ++queue) {
      list.push_back(name_json("thread_name", pid, queue, std::string(name_of_queue(static_cast<Queue>(queue)))));
    }
  }
  const bool merge = simulation.events.size() > kMostEvents;
  for (const SimulatedEvent& event : merge ? per_block(simulation.events) : simulation.events) {
    list.push_back(event_json(programs[static_cast<size_t>(event.stage)], event));
  }
  add_counters(programs, simulation.events, list);
  Json document;
  document["traceEvents"] = std::move(list);
  document["displayTimeUnit"] = "ms";
  return document.dump() + "\n";
}

}  // namespace foresail
