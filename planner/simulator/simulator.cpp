#include "planner/simulator/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <unordered_map>

#include "core/error.h"
#include "planner/simulator/priced_program.h"
#include "program/dependencies.h"

namespace foresail {
namespace {

constexpr size_t kGroups = kGroupKinds;
constexpr double kNotYet = -1;

/// A played step as others see it: when it became ready, when its transfer began, when it ended.
struct Played {
  double ready = 0, begin = 0, end = 0;
  InstructionKind kind = InstructionKind::op;
  TimeKind time = TimeKind::compute;
  bool idle_before_begin = false;  ///< [ready, begin) is waiting for another stage
};

struct Message {
  double posted = kNotYet, begin = kNotYet, arrived = kNotYet;
};

struct JointCollective {
  double latest_arrival = 0;
  int32_t arrived = 0;
};

/// The position of one stage in its Program, and its clocks.
struct Stage {
  const PricedProgram* priced = nullptr;
  size_t entry = 0, call = 0, step = 0;
  int64_t number = 0;            // of the next instruction (program/dependencies.h)
  size_t wait = 0, awaited = 0;  // next of PricedProgram::waits and ::awaited
  bool arrived = false;          // at the joint collective it stands before
  std::array<double, kQueueCount> free_at{};
  std::array<Played, kQueueCount> latest{};              // of each queue
  std::vector<Played> awaited_played;                    // by position in PricedProgram::awaited
  std::array<size_t, kGroups> joint_count{};             // joint collectives passed, by group kind
  std::map<int32_t, std::vector<uint64_t>> outstanding;  // sends by channel
  TimePrediction time;
  double busy = 0;
};

double& bucket(TimePrediction& time, TimeKind kind) {
  switch (kind) {
    case TimeKind::compute: return time.compute;
    case TimeKind::recompute: return time.recompute;
    case TimeKind::tensor_comm: return time.tensor_comm;
    case TimeKind::context_comm: return time.context_comm;
    case TimeKind::expert_comm: return time.expert_comm;
    case TimeKind::data_comm: return time.data_comm;
    case TimeKind::pipeline_comm: return time.pipeline_comm;
    case TimeKind::optimizer: return time.optimizer;
  }
  return time.compute;
}

double sum(const TimePrediction& time) {
  return time.compute + time.recompute + time.tensor_comm + time.context_comm + time.expert_comm + time.data_comm +
         time.pipeline_comm + time.bubble + time.optimizer + time.data_wait;
}

class Player {
 public:
  Player(std::span<const PricedProgram> programs, const SimulationOptions& options, Simulation& result);
  void play();

 private:
  bool advance(int32_t index);  // false: the stage waits for another one or is done; `moved_` says whether it moved
  bool play_step(int32_t index, Stage& stage, const PricedStep& step, const ScheduleEntry& entry);
  bool play_receive(int32_t index, const PricedStep& step, int32_t micro_batch, Played& played);
  bool play_wait_send(Stage& stage, const PricedStep& step, Played& played);
  bool play_joint(Stage& stage, const PricedStep& step, Played& played);
  int32_t stages_of(GroupKind group) const;
  uint64_t message_key(int32_t from, int32_t to, int32_t channel, int32_t micro_batch);
  void finish(Stage& stage, const PricedStep& step, const Played& played, const Played* cause);
  void charge_gap(Stage& stage, double from, double to, const Played* cause) const;
  void record(int32_t index, const Stage& stage, const PricedStep& step, const ScheduleEntry& entry,
              const Played& played);
  [[noreturn]] void report_deadlock() const;
  void close();

  SimulationOptions options_;
  Simulation& result_;
  std::vector<Stage> stages_;
  std::unordered_map<uint64_t, Message> messages_;
  std::map<std::array<int32_t, 3>, uint64_t> routes_;  // numbers of (from, to, channel)
  std::array<std::vector<JointCollective>, kGroups> joint_;
  bool moved_ = false;
};

Player::Player(std::span<const PricedProgram> programs, const SimulationOptions& options, Simulation& result)
    : options_(options), result_(result) {
  stages_.resize(programs.size());
  for (size_t i = 0; i < programs.size(); ++i) {
    stages_[i].priced = &programs[i];
    stages_[i].awaited_played.resize(programs[i].awaited.size());
  }
}

void Player::play() {
  bool done = false;
  while (!done) {
    done = true;
    moved_ = false;
    for (size_t i = 0; i < stages_.size(); ++i) {
      while (advance(static_cast<int32_t>(i))) {
      }
      done = done && stages_[i].entry == stages_[i].priced->program->schedule.size();
    }
    if (!done && !moved_) report_deadlock();
  }
  close();
}

bool Player::advance(int32_t index) {
  Stage& stage = stages_[static_cast<size_t>(index)];
  const Program& program = *stage.priced->program;
  if (stage.entry == program.schedule.size()) return false;
  const ScheduleEntry& entry = program.schedule[stage.entry];
  const auto& calls = calls_of(program, entry);
  if (entry.phase == Phase::startup || stage.call == calls.size()) {
    ++stage.entry;
    stage.call = 0;
    moved_ = true;
    return true;
  }
  const Call& call = calls[stage.call];
  const auto& steps = stage.priced->blocks[static_cast<size_t>(call.block)].steps;
  const size_t count = skips(entry, call) ? 0 : steps.size();
  while (stage.step < count) {
    if (!play_step(index, stage, steps[stage.step], entry)) return false;
    ++stage.step;
    moved_ = true;
  }
  stage.step = 0;
  ++stage.call;
  moved_ = true;
  return true;
}

bool Player::play_step(int32_t index, Stage& stage, const PricedStep& step, const ScheduleEntry& entry) {
  Played played;
  played.kind = step.kind;
  played.time = step.time;
  const Played* cause = nullptr;
  played.ready = stage.free_at[static_cast<size_t>(step.queue)];
  const auto& waits = stage.priced->waits;
  for (size_t w = stage.wait; w < waits.size() && waits[w].waiting == stage.number; ++w) {
    const Played& other = stage.awaited_played[waits[w].awaited];
    if (other.end > played.ready) played.ready = other.end, cause = &other;
  }
  played.begin = played.ready;
  played.end = played.ready + step.seconds;
  switch (step.kind) {
    case InstructionKind::op: break;
    case InstructionKind::all_reduce:
    case InstructionKind::all_gather:
    case InstructionKind::reduce_scatter:
    case InstructionKind::all_to_all:
    case InstructionKind::ring_shift:
      if (stages_of(step.group) > 1 && !play_joint(stage, step, played)) return false;
      break;
    case InstructionKind::send: {
      const uint64_t key = message_key(index, step.peer_stage, step.channel, entry.micro_batch);
      messages_[key].posted = played.end;
      stage.outstanding[step.channel].push_back(key);
      break;
    }
    case InstructionKind::receive:
      if (!play_receive(index, step, entry.micro_batch, played)) return false;
      break;
    case InstructionKind::wait_send:
      if (!play_wait_send(stage, step, played)) return false;
      break;
  }
  if (options_.record_events) record(index, stage, step, entry, played);
  finish(stage, step, played, cause);
  result_.instructions += step.instructions;
  return true;
}

bool Player::play_receive(int32_t index, const PricedStep& step, int32_t micro_batch, Played& played) {
  const auto found = messages_.find(message_key(step.peer_stage, index, step.channel, micro_batch));
  if (found == messages_.end() || found->second.posted == kNotYet) return false;
  Message& message = found->second;
  played.begin = std::max(played.ready, message.posted);
  played.end = played.begin + step.seconds;
  played.idle_before_begin = true;
  message.begin = played.begin;
  message.arrived = played.end;
  return true;
}

bool Player::play_wait_send(Stage& stage, const PricedStep& step, Played& played) {
  auto& outstanding = stage.outstanding[step.channel];
  const size_t through = outstanding.size() - std::min(outstanding.size(), static_cast<size_t>(step.keep));
  const std::span<const uint64_t> keys = std::span(outstanding).first(through);
  for (const uint64_t key : keys) {
    if (messages_.at(key).arrived == kNotYet) return false;
  }
  for (const uint64_t key : keys) {
    const Message& message = messages_.at(key);
    if (message.arrived <= played.end) continue;
    played.end = message.arrived;
    played.begin = std::max(played.ready, message.begin);
    played.idle_before_begin = true;
  }
  outstanding.erase(outstanding.begin(), outstanding.begin() + static_cast<int64_t>(through));
  return true;
}

/// All stages of the group must arrive; the stage stays before the step until then.
bool Player::play_joint(Stage& stage, const PricedStep& step, Played& played) {
  const auto group = static_cast<size_t>(step.group);
  auto& records = joint_[group];
  const size_t ordinal = stage.joint_count[group];
  if (records.size() <= ordinal) records.resize(ordinal + 1);
  JointCollective& record = records[ordinal];
  if (!stage.arrived) {
    record.latest_arrival = std::max(record.latest_arrival, played.ready);
    ++record.arrived;
    stage.arrived = true;
    moved_ = true;
  }
  if (record.arrived < stages_of(step.group)) return false;
  stage.arrived = false;
  ++stage.joint_count[group];
  played.begin = record.latest_arrival;
  played.end = played.begin + step.seconds;
  played.idle_before_begin = true;
  return true;
}

int32_t Player::stages_of(GroupKind group) const {
  const auto stages = static_cast<int32_t>(stages_.size());
  if (group == GroupKind::world) return stages;
  const bool pair = group == GroupKind::embedding && stages_[0].priced->program->mesh.embedding_pair;
  return pair ? std::min(stages, 2) : 1;
}

uint64_t Player::message_key(int32_t from, int32_t to, int32_t channel, int32_t micro_batch) {
  const uint64_t route = routes_.try_emplace({from, to, channel}, routes_.size()).first->second;
  return (route << 32) | static_cast<uint32_t>(micro_batch);
}

/// Advances the clock of the step's queue and says what the time of the compute queue went to.
void Player::finish(Stage& stage, const PricedStep& step, const Played& played, const Played* cause) {
  const auto queue = static_cast<size_t>(step.queue);
  if (step.queue == Queue::compute) {
    charge_gap(stage, stage.free_at[queue], played.ready, cause);
    (played.idle_before_begin ? stage.time.bubble : bucket(stage.time, step.time)) += played.begin - played.ready;
    bucket(stage.time, step.time) += played.end - played.begin;
    stage.busy += played.end - played.begin;
  }
  stage.free_at[queue] = played.end;
  stage.latest[queue] = played;
  const auto& waits = stage.priced->waits;
  while (stage.wait < waits.size() && waits[stage.wait].waiting == stage.number) ++stage.wait;
  stage.number += step.instructions;
  const auto& awaited = stage.priced->awaited;
  if (stage.awaited < awaited.size() && awaited[stage.awaited] == stage.number - 1) {
    stage.awaited_played[stage.awaited++] = played;
  }
}

/// The compute queue stood still from `from` to `to` because of `cause`: its transfer is exposed communication, waiting
/// for another stage before that is bubble.
void Player::charge_gap(Stage& stage, double from, double to, const Played* cause) const {
  if (to <= from) return;
  if (cause == nullptr) {
    stage.time.bubble += to - from;
    return;
  }
  const double begin = std::clamp(cause->begin, from, to);
  (cause->idle_before_begin ? stage.time.bubble : bucket(stage.time, cause->time)) += begin - from;
  bucket(stage.time, cause->time) += to - begin;
}

void Player::record(int32_t index, const Stage& stage, const PricedStep& step, const ScheduleEntry& entry,
                    const Played& played) {
  result_.events.push_back({index, step.queue, entry.phase, entry.chunk, static_cast<int32_t>(stage.call),
                            step.first_instruction, entry.micro_batch, played.ready, played.end});
}

void Player::report_deadlock() const {
  for (size_t i = 0; i < stages_.size(); ++i) {
    const Stage& stage = stages_[i];
    const Program& program = *stage.priced->program;
    if (stage.entry == program.schedule.size()) continue;
    const ScheduleEntry& entry = program.schedule[stage.entry];
    throw_environment(fmt::format("program '{}' stage {}", program.name, i),
                      fmt::format("deadlock in phase {} of micro-batch {}: what it waits for is never sent",
                                  name_of(entry.phase), entry.micro_batch),
                      "this is a defect of the compiled or dumped program: report it with the dump");
  }
  throw_environment("simulation", "no stage can go on", "this is a defect: report it");
}

/// The class that finishes last gives the step; what its other queues still do at the end is exposed.
void Player::close() {
  size_t last = 0;
  std::vector<double> ends;
  for (Stage& stage : stages_) {
    const auto queue = std::max_element(stage.free_at.begin(), stage.free_at.end()) - stage.free_at.begin();
    const double end = stage.free_at[static_cast<size_t>(queue)];
    charge_gap(stage, stage.free_at[static_cast<size_t>(Queue::compute)], end,
               &stage.latest[static_cast<size_t>(queue)]);
    ends.push_back(end);
    if (end > ends[last]) last = ends.size() - 1;
    result_.stage_seconds.push_back(stage.busy);
  }
  result_.time = stages_[last].time;
  result_.step_seconds = sum(result_.time);
  ensure(std::abs(result_.step_seconds - ends[last]) <= 1e-9 * ends[last] + 1e-15, "time by kind sums to the step");
}

/// Relative half-width of the finishing stage's own errors.
double own_spread(const PricedProgram& priced) {
  const std::vector<int64_t> executions = block_executions(*priced.program);
  std::map<std::string, std::pair<double, double>> by_instruction;  // seconds, seconds x spread
  double seconds = 0;
  for (size_t b = 0; b < priced.blocks.size(); ++b) {
    if (!priced.blocks[b].used) continue;
    const Block& block = priced.program->blocks[b];
    for (size_t i = 0; i < block.instructions.size(); ++i) {
      const Cost& cost = priced.blocks[b].costs[i];
      const double total = cost.seconds * static_cast<double>(executions[b]);
      if (total <= 0) continue;
      const Instruction& instruction = block.instructions[i];
      const std::string key =
          instruction.kind == InstructionKind::op
              ? signature(op_instance(block, instruction))
              : fmt::format("{}/{}", static_cast<int>(instruction.kind), static_cast<int>(instruction.group));
      auto& entry = by_instruction[key];
      entry.first += total;
      entry.second += total * cost.spread;
      seconds += total;
    }
  }
  double variance = 0;
  for (const auto& [key, entry] : by_instruction) variance += entry.second * entry.second;
  return seconds > 0 ? std::sqrt(variance) / seconds : 0;
}

}  // namespace

Simulation simulate(std::span<const Program> stages, const CostModel& costs, const SimulationOptions& options) {
  ensure(!stages.empty(), "a pipeline has at least one stage");
  std::vector<PricedProgram> priced;
  priced.reserve(stages.size());
  for (const Program& program : stages) {
    priced.push_back(price(program, costs, options.devices_per_node, !options.record_events));
  }
  Simulation result;
  Player(priced, options, result).play();
  const auto busiest = std::max_element(result.stage_seconds.begin(), result.stage_seconds.end());
  const double own = own_spread(priced[static_cast<size_t>(busiest - result.stage_seconds.begin())]);
  const double half_width = std::hypot(own, costs.common_spread());
  result.low = result.step_seconds * std::max(0.0, 1 - half_width);
  result.high = result.step_seconds * (1 + half_width);
  return result;
}

}  // namespace foresail
