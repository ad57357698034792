#include "runtime/executor/executor.h"

#include <array>
#include <chrono>
#include <cstring>

#include <fmt/format.h>

#include "core/error.h"
#include "runtime/executor/bind.h"
#include "runtime/executor/queue_engine.h"
#include "runtime/executor/step_plan.h"

namespace foresail {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Events of all queues in the order in which they began; those of one queue keep theirs.
void merge_traces(std::array<std::vector<TraceEvent>, kQueueCount>& queues, std::vector<TraceEvent>& merged) {
  std::array<size_t, kQueueCount> next{};
  merged.clear();
  while (true) {
    size_t earliest = kQueueCount;
    for (size_t queue = 0; queue < kQueueCount; ++queue) {
      if (next[queue] == queues[queue].size()) continue;
      if (earliest == kQueueCount ||
          queues[queue][next[queue]].begin_seconds < queues[earliest][next[earliest]].begin_seconds) {
        earliest = queue;
      }
    }
    if (earliest == kQueueCount) return;
    merged.push_back(queues[earliest][next[earliest]++]);
  }
}

/// The call that a thread is in.
struct Frame {
  const ExecutedCall* planned = nullptr;
  const BoundBlock* block = nullptr;
  RegisterFile registers{};
  KernelContext context;
};

}  // namespace

struct Executor::State {
  const Program& program;
  Arena& arena;
  std::unique_ptr<Communicator> single_rank;  ///< owned when none was given
  Communicator& communicator;
  std::vector<BoundBlock> blocks;
  DataOperands data;
  int64_t first_sequence = 0;  ///< of this rank in the global batch
  KernelContext rank_context;  ///< what is the same in all calls
  std::vector<ExecutedCall> calls;
  QueuePlan plan;                                         ///< empty if serial
  std::array<Frame, kQueueCount> frames;                  ///< by queue: where its thread stands
  std::vector<std::vector<Communicator::Request>> sends;  ///< outstanding, by channel; the plan orders their use
  bool tracing = false;
  std::array<std::vector<TraceEvent>, kQueueCount> queue_traces;
  std::vector<TraceEvent> trace;
  Clock::time_point step_start;
  std::unique_ptr<QueueEngine> engine;  ///< none if serial; last: its threads use everything above

  State(const Program& program, Device& device, Communicator* given, Arena& arena, int world_rank,
        const ExecutorOptions& options);
  void set_context(const MeshCoordinate& place);
  void make_engine(const ExecutorOptions& options);
  void run_startup();
  void run_serially();
  void enter(Frame& frame, const ExecutedCall& planned) const;
  void run_item(size_t queue, size_t item);
  void run_traced(const Frame& frame, size_t index);
  void run_instruction(const Frame& frame, const BoundInstruction& instruction);
  void communicate(const BoundInstruction& instruction, void* const* operands, int32_t micro_batch);
  void wait_sends(int32_t channel, int32_t keep);
  std::span<int32_t> data_slot(int64_t micro_batch, int64_t offset) const;
};

Executor::State::State(const Program& program_, Device& device, Communicator* given, Arena& arena_, int world_rank,
                       const ExecutorOptions& options)
    : program(program_),
      arena(arena_),
      single_rank(given == nullptr ? make_local_communicator() : nullptr),
      communicator(given == nullptr ? *single_rank : *given) {
  if (arena.bytes() < program.arena.bytes) {
    throw_bad_input(
        fmt::format("program '{}'", program.name),
        fmt::format("it needs an arena of {} bytes, the one given has {}", program.arena.bytes, arena.bytes()),
        "allocate the arena for the largest Program of the set");
  }
  ensure(world_rank < program.mesh.size() && communicator.size() >= program.mesh.size(),
         "a Program runs on the first ranks of its communicator");
  calls = plan_calls(program);
  if (single_rank != nullptr) single_rank->create_groups(mesh_groups(program.mesh).members);
  blocks = bind_blocks(program, device, communicator, world_rank);
  data = find_data_operands(program);
  set_context(program.mesh.coordinate_of(world_rank));
  sends.resize(static_cast<size_t>(channel_count(program)));
  for (auto& channel : sends) channel.reserve(static_cast<size_t>(2 * program.micro_batches + 2));
  if (uses_queues_besides_compute(program) && !options.serialise_queues) make_engine(options);
}

void Executor::State::set_context(const MeshCoordinate& place) {
  const Mesh& mesh = program.mesh;
  rank_context.step = reinterpret_cast<const StepInputs*>(arena.data() + program.arena.step_inputs.offset);
  rank_context.tensor_rank = place.tp;
  rank_context.tensor_size = mesh.tp;
  rank_context.context_rank = place.cp;
  rank_context.context_size = mesh.cp;
  rank_context.replica_rank = mesh.replica_rank(place);
  rank_context.expert_replica_rank = mesh.expert_replica_rank(place);
  rank_context.kv_copies = mesh.kv_copies;
  // Context-parallel ranks of one dp rank hold their parts of the same sequences.
  first_sequence = place.dp * program.micro_batches * sequences_per_micro_batch(program);
}

void Executor::State::make_engine(const ExecutorOptions& options) {
  if (!communicator.concurrent()) {
    throw_environment(
        fmt::format("program '{}'", program.name),
        fmt::format("its queues communicate at the same time, which {} does not allow", communicator.description()),
        "install an MPI library with MPI_THREAD_MULTIPLE or plan with overlap=false");
  }
  plan = plan_queues(calls, blocks, options.dependencies ? *options.dependencies : dependencies_of(program));
  engine = std::make_unique<QueueEngine>(
      std::move(plan.work), [this](size_t queue, size_t item) { run_item(queue, item); },
      [this](const std::string& message) { communicator.abort(message); });
}

void Executor::State::run_startup() {
  const ScheduleEntry entry{.phase = Phase::startup};
  Frame frame;
  for (const ExecutedCall& call : plan_startup(program, entry)) {
    enter(frame, call);
    for (const BoundInstruction& instruction : frame.block->instructions) run_instruction(frame, instruction);
  }
}

void Executor::State::run_serially() {
  Frame& frame = frames[static_cast<size_t>(Queue::compute)];
  for (const ExecutedCall& call : calls) {
    enter(frame, call);
    for (size_t i = 0; i < frame.block->instructions.size(); ++i) run_traced(frame, i);
  }
}

void Executor::State::run_item(size_t queue, size_t item) {
  const PlannedInstruction& planned = plan.items[queue][item];
  const ExecutedCall& call = calls[static_cast<size_t>(planned.call)];
  if (frames[queue].planned != &call) enter(frames[queue], call);
  run_traced(frames[queue], static_cast<size_t>(planned.instruction));
}

void Executor::State::enter(Frame& frame, const ExecutedCall& planned) const {
  frame.planned = &planned;
  frame.block = &blocks[static_cast<size_t>(planned.call->block)];
  frame.registers = registers_for(program, *planned.call, *planned.entry);
  frame.context = rank_context;
  frame.context.layer = planned.call->layer;
  const int64_t micro_batch = std::max(planned.entry->micro_batch, 0);
  const int64_t sequence = first_sequence + micro_batch * sequences_per_micro_batch(program);
  frame.context.first_row = sequence * program.sequence_length;
}

void Executor::State::run_traced(const Frame& frame, size_t index) {
  const BoundInstruction& instruction = frame.block->instructions[index];
  if (!tracing) {
    run_instruction(frame, instruction);
    return;
  }
  const double begin = seconds_since(step_start);
  run_instruction(frame, instruction);
  const ScheduleEntry& entry = *frame.planned->entry;
  const size_t thread = engine == nullptr ? 0 : static_cast<size_t>(instruction.queue);
  queue_traces[thread].push_back({.phase = entry.phase,
                                  .chunk = entry.chunk,
                                  .call = frame.planned->call_index,
                                  .instruction = static_cast<int32_t>(index),
                                  .queue = instruction.queue,
                                  .micro_batch = entry.micro_batch,
                                  .begin_seconds = begin,
                                  .end_seconds = seconds_since(step_start)});
}

void Executor::State::run_instruction(const Frame& frame, const BoundInstruction& instruction) {
  const auto address = [&](int32_t operand) -> void* {
    const BoundOperand& at = frame.block->operands[static_cast<size_t>(operand)];
    return arena.data() + frame.registers[at.base] + at.offset;
  };
  std::array<void*, kMostOperands> operands;
  const int32_t total = instruction.inputs + instruction.outputs;
  for (int32_t i = 0; i < total; ++i) operands[static_cast<size_t>(i)] = address(instruction.first_operand + i);
  if (instruction.kind != InstructionKind::op) {
    communicate(instruction, operands.data(), frame.planned->entry->micro_batch);
    return;
  }
  const auto inputs = static_cast<size_t>(instruction.inputs);
  const auto outputs = static_cast<size_t>(instruction.outputs);
  instruction.kernel->run({.inputs = {operands.data(), inputs},
                           .outputs = {operands.data() + inputs, outputs},
                           .workspace = instruction.workspace < 0 ? nullptr : address(instruction.workspace),
                           .context = frame.context});
}

void Executor::State::communicate(const BoundInstruction& instruction, void* const* operands, int32_t micro_batch) {
  void* const output = instruction.outputs > 0 ? operands[instruction.inputs] : nullptr;
  const int64_t count = instruction.count;
  const GroupId group = instruction.group;
  const auto tag = [&] { return message_tag(program, instruction.channel, micro_batch); };
  switch (instruction.kind) {
    case InstructionKind::all_reduce:
      communicator.all_reduce(output, count, instruction.dtype, ReduceKind::sum, group);
      break;
    case InstructionKind::all_gather:
      communicator.all_gather(operands[0], output, count, instruction.dtype, group);
      break;
    case InstructionKind::reduce_scatter:
      communicator.reduce_scatter(operands[0], output, count, instruction.dtype, group);
      break;
    case InstructionKind::all_to_all:
      communicator.all_to_all(operands[0], output, count, instruction.dtype, group);
      break;
    case InstructionKind::ring_shift: communicator.ring_shift(operands[0], output, instruction.bytes, group); break;
    case InstructionKind::send:
      sends[static_cast<size_t>(instruction.channel)].push_back(
          communicator.send(operands[0], instruction.bytes, instruction.peer, tag()));
      break;
    case InstructionKind::receive:
      communicator.wait(communicator.receive(output, instruction.bytes, instruction.peer, tag()));
      break;
    case InstructionKind::wait_send: wait_sends(instruction.channel, instruction.keep); break;
    case InstructionKind::op: break;
  }
}

void Executor::State::wait_sends(int32_t channel, int32_t keep) {
  auto& outstanding = sends[static_cast<size_t>(channel)];
  const int64_t through = std::max<int64_t>(0, static_cast<int64_t>(outstanding.size()) - keep);
  const auto end = outstanding.begin() + through;
  for (auto request = outstanding.begin(); request != end; ++request) communicator.wait(*request);
  outstanding.erase(outstanding.begin(), end);
}

std::span<int32_t> Executor::State::data_slot(int64_t micro_batch, int64_t offset) const {
  if (offset < 0) return {};
  ensure(micro_batch >= 0 && micro_batch < program.micro_batches, "a micro-batch of this rank");
  std::byte* at = arena.data() + program.arena.data.offset + micro_batch * program.data_stride_bytes + offset;
  return {reinterpret_cast<int32_t*>(at), static_cast<size_t>(program.rows_per_micro_batch)};
}

Executor::Executor(const Program& program, Device& device, Communicator* communicator, Arena& arena, int world_rank,
                   const ExecutorOptions& options)
    : state_(std::make_unique<State>(program, device, communicator, arena, world_rank, options)) {
  step_inputs() = StepInputs{};
}

Executor::~Executor() = default;

QueueMode Executor::queue_mode() const { return state_->engine == nullptr ? QueueMode::serial : QueueMode::concurrent; }

void Executor::startup() { state_->run_startup(); }

StepInputs& Executor::step_inputs() {
  return *reinterpret_cast<StepInputs*>(state_->arena.data() + state_->program.arena.step_inputs.offset);
}

std::span<int32_t> Executor::tokens(int64_t micro_batch) {
  return state_->data_slot(micro_batch, state_->data.tokens_offset);
}

std::span<int32_t> Executor::targets(int64_t micro_batch) {
  return state_->data_slot(micro_batch, state_->data.targets_offset);
}

void Executor::step() {
  State& state = *state_;
  state.step_start = Clock::now();
  for (auto& events : state.queue_traces) events.clear();
  if (state.engine == nullptr) {
    state.run_serially();
  } else {
    state.engine->step();
  }
  if (state.tracing) merge_traces(state.queue_traces, state.trace);
}

StepMetrics Executor::metrics() const {
  std::array<double, kStepMetrics> record{};
  std::memcpy(record.data(), state_->arena.data() + state_->program.arena.metrics.offset, sizeof record);
  const auto value = [&](StepMetric metric) { return record[static_cast<size_t>(index_of(metric))]; };
  return {.loss = value(StepMetric::loss),
          .auxiliary_loss = value(StepMetric::auxiliary_loss),
          .overflow = value(StepMetric::overflow),
          .grad_norm = value(StepMetric::grad_norm),
          .clip_factor = value(StepMetric::clip_factor)};
}

void Executor::enable_trace() {
  State& state = *state_;
  size_t total = 0;
  for (const ExecutedCall& call : state.calls) {
    total += state.blocks[static_cast<size_t>(call.call->block)].instructions.size();
  }
  state.trace.reserve(total);
  for (size_t queue = 0; queue < kQueueCount; ++queue) {
    state.queue_traces[queue].reserve(state.engine == nullptr && queue == 0 ? total : state.plan.items[queue].size());
  }
  state.tracing = true;
}

const std::vector<TraceEvent>& Executor::trace() const { return state_->trace; }

}  // namespace foresail
