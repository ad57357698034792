#include "runtime/executor/executor.h"

#include <array>
#include <chrono>
#include <cstring>

#include <fmt/format.h>

#include "core/error.h"
#include "runtime/executor/bind.h"

namespace foresail {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int32_t channel_count(const Program& program) {
  int32_t channels = 0;
  for (const Block& block : program.blocks) {
    for (const Instruction& instruction : block.instructions) channels = std::max(channels, instruction.channel + 1);
  }
  return channels;
}

/// Instructions that one walk of the schedule executes.
size_t executed_instructions(const Program& program) {
  size_t total = 0;
  for (const ScheduleEntry& entry : program.schedule) {
    for (const Call& call : program.calls[static_cast<size_t>(entry.phase)]) {
      total += program.blocks[static_cast<size_t>(call.block)].instructions.size();
    }
  }
  return total;
}

void check_indices(const Program& program) {
  for (const auto& calls : program.calls) {
    for (const Call& call : calls) {
      ensure(call.block >= 0 && call.block < static_cast<int32_t>(program.blocks.size()), "a call names a block");
    }
  }
}

}  // namespace

struct Executor::State {
  const Program& program;
  Arena& arena;
  std::unique_ptr<Communicator> single_rank;  ///< owned when none was given
  Communicator& communicator;
  std::vector<BoundBlock> blocks;
  DataOperands data;
  KernelContext context;
  std::vector<std::vector<Communicator::Request>> sends;  ///< outstanding, by channel
  bool tracing = false;
  std::vector<TraceEvent> trace;
  Clock::time_point step_start;

  State(const Program& program, Device& device, Communicator* given, Arena& arena, int world_rank);
  void run_entry(const ScheduleEntry& entry);
  void run_call(const ScheduleEntry& entry, int32_t call_index);
  void run_instruction(const BoundBlock& block, const BoundInstruction& instruction, const RegisterFile& registers,
                       int32_t micro_batch);
  void communicate(const BoundInstruction& instruction, void* const* operands, int32_t micro_batch);
  void wait_sends(int32_t channel);
  std::span<int32_t> data_slot(int64_t micro_batch, int64_t offset) const;
};

Executor::State::State(const Program& program_, Device& device, Communicator* given, Arena& arena_, int world_rank)
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
  check_indices(program);
  if (single_rank != nullptr) single_rank->create_groups(mesh_groups(program.mesh).members);
  blocks = bind_blocks(program, device, communicator, world_rank);
  data = find_data_operands(program);

  const MeshCoordinate place = program.mesh.coordinate_of(world_rank);
  context.step = reinterpret_cast<const StepInputs*>(arena.data() + program.arena.step_inputs.offset);
  context.tensor_rank = place.tp;
  context.data_rank = place.dp;
  context.tensor_size = program.mesh.tp;
  sends.resize(static_cast<size_t>(channel_count(program)));
  for (auto& channel : sends) channel.reserve(static_cast<size_t>(2 * program.micro_batches + 2));
}

void Executor::State::run_entry(const ScheduleEntry& entry) {
  const auto calls = static_cast<int32_t>(program.calls[static_cast<size_t>(entry.phase)].size());
  for (int32_t call = 0; call < calls; ++call) run_call(entry, call);
}

void Executor::State::run_call(const ScheduleEntry& entry, int32_t call_index) {
  const Call& call = program.calls[static_cast<size_t>(entry.phase)][static_cast<size_t>(call_index)];
  const RegisterFile registers = registers_for(program, call, entry);
  const int64_t micro_batch = std::max(entry.micro_batch, 0);
  context.layer = call.layer;
  context.first_row = (context.data_rank * program.micro_batches + micro_batch) * program.rows_per_micro_batch;
  const BoundBlock& block = blocks[static_cast<size_t>(call.block)];
  for (size_t i = 0; i < block.instructions.size(); ++i) {
    const double begin = tracing ? seconds_since(step_start) : 0;
    run_instruction(block, block.instructions[i], registers, entry.micro_batch);
    if (tracing && trace.size() < trace.capacity()) {
      trace.push_back(
          {entry.phase, call_index, static_cast<int32_t>(i), entry.micro_batch, begin, seconds_since(step_start)});
    }
  }
}

void Executor::State::run_instruction(const BoundBlock& block, const BoundInstruction& instruction,
                                      const RegisterFile& registers, int32_t micro_batch) {
  const auto address = [&](int32_t operand) -> void* {
    const BoundOperand& at = block.operands[static_cast<size_t>(operand)];
    return arena.data() + registers[at.base] + at.offset;
  };
  std::array<void*, kMostOperands> operands;
  const int32_t total = instruction.inputs + instruction.outputs;
  for (int32_t i = 0; i < total; ++i) operands[static_cast<size_t>(i)] = address(instruction.first_operand + i);
  if (instruction.kind != InstructionKind::op) {
    communicate(instruction, operands.data(), micro_batch);
    return;
  }
  const auto inputs = static_cast<size_t>(instruction.inputs);
  const auto outputs = static_cast<size_t>(instruction.outputs);
  instruction.kernel->run({.inputs = {operands.data(), inputs},
                           .outputs = {operands.data() + inputs, outputs},
                           .workspace = instruction.workspace < 0 ? nullptr : address(instruction.workspace),
                           .context = context});
}

void Executor::State::communicate(const BoundInstruction& instruction, void* const* operands, int32_t micro_batch) {
  void* const output = instruction.outputs > 0 ? operands[instruction.inputs] : nullptr;
  switch (instruction.kind) {
    case InstructionKind::all_reduce:
      communicator.all_reduce(output, instruction.count, instruction.dtype, ReduceKind::sum, instruction.group);
      break;
    case InstructionKind::all_gather:
      communicator.all_gather(operands[0], output, instruction.count, instruction.dtype, instruction.group);
      break;
    case InstructionKind::send: {
      const int tag = message_tag(instruction.channel, micro_batch);
      const auto request = communicator.send(operands[0], instruction.bytes, instruction.peer, tag);
      sends[static_cast<size_t>(instruction.channel)].push_back(request);
      break;
    }
    case InstructionKind::receive: {
      const int tag = message_tag(instruction.channel, micro_batch);
      communicator.wait(communicator.receive(output, instruction.bytes, instruction.peer, tag));
      break;
    }
    case InstructionKind::wait_send: wait_sends(instruction.channel); break;
    case InstructionKind::op: break;
  }
}

void Executor::State::wait_sends(int32_t channel) {
  auto& outstanding = sends[static_cast<size_t>(channel)];
  for (const Communicator::Request request : outstanding) communicator.wait(request);
  outstanding.clear();
}

std::span<int32_t> Executor::State::data_slot(int64_t micro_batch, int64_t offset) const {
  if (offset < 0) return {};
  ensure(micro_batch >= 0 && micro_batch < program.micro_batches, "a micro-batch of this rank");
  std::byte* at = arena.data() + program.arena.data.offset + micro_batch * program.data_stride_bytes + offset;
  return {reinterpret_cast<int32_t*>(at), static_cast<size_t>(program.rows_per_micro_batch)};
}

Executor::Executor(const Program& program, Device& device, Communicator* communicator, Arena& arena, int world_rank)
    : state_(std::make_unique<State>(program, device, communicator, arena, world_rank)) {
  step_inputs() = StepInputs{};
}

Executor::~Executor() = default;

void Executor::startup() { state_->run_entry({.phase = Phase::startup, .chunk = 0, .micro_batch = -1, .slot = 0}); }

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
  if (state.tracing) state.trace.clear();
  for (const ScheduleEntry& entry : state.program.schedule) state.run_entry(entry);
}

StepMetrics Executor::metrics() const {
  std::array<double, 4> record{};
  std::memcpy(record.data(), state_->arena.data() + state_->program.arena.metrics.offset, sizeof record);
  return {.loss = record[0], .grad_norm = record[2], .clip_factor = record[3]};
}

void Executor::enable_trace() {
  state_->trace.reserve(executed_instructions(state_->program));
  state_->tracing = true;
}

const std::vector<TraceEvent>& Executor::trace() const { return state_->trace; }

}  // namespace foresail
