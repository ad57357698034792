#include "tests/planner/hand_made.h"

#include "program/schedule.h"

namespace foresail::test {
namespace {

constexpr int64_t kElement = 4;

Instruction communication(InstructionKind kind, Queue queue, TimeKind time) {
  Instruction instruction;
  instruction.kind = kind;
  instruction.queue = queue;
  instruction.time = time;
  return instruction;
}

/// Adds a block with one call to a phase of a chunk.
void add_call(Program& program, Phase phase, size_t chunk, Block block) {
  auto& lists = program.calls[static_cast<size_t>(phase)];
  if (lists.size() <= chunk) lists.resize(chunk + 1);
  Call call;
  call.block = static_cast<int32_t>(program.blocks.size());
  call.layer = 0;
  lists[chunk].push_back(call);
  program.blocks.push_back(std::move(block));
}

/// Hidden states go up, their gradients down: messages where the neighbouring virtual stage lies on another rank.
void add_chunk(Program& program, const Strategy& strategy, const VirtualPlace& place, const ChunkSeconds& seconds) {
  const int64_t own = virtual_stage_of(strategy, place), count = virtual_stage_count(strategy);
  const auto peer_of = [&](int64_t other) {
    if (other < 0 || other >= count) return -1;
    const int32_t stage = place_of(strategy, other).stage;
    return stage == place.stage ? -1 : stage;
  };
  const int before = peer_of(own - 1), after = peer_of(own + 1);
  const int up = static_cast<int>(2 * own), down = up + 1;  // channels of the boundary above this virtual stage
  const bool splits = splits_backward(strategy.schedule);
  BlockBuilder f, b, w;
  if (before >= 0) f.receive(before, up - 2);
  f.op(seconds.forward);
  if (after >= 0) f.send(after, up), b.receive(after, down);
  b.op(seconds.input_gradient + (splits ? 0 : seconds.weight_gradient));
  if (before >= 0) b.send(before, down - 2);
  const auto chunk = static_cast<size_t>(place.chunk);
  add_call(program, Phase::forward, chunk, f.finish("forward"));
  add_call(program, Phase::backward, chunk, b.finish("backward"));
  if (!splits) return;
  w.op(seconds.weight_gradient);
  add_call(program, Phase::weight_gradient, chunk, w.finish("weight_gradient"));
}

}  // namespace

Value BlockBuilder::fresh(int64_t elements) {
  static int64_t next = 0;
  const Value value{next, elements};
  next += elements * kElement;
  return value;
}

int32_t BlockBuilder::buffer(const Value& value) {
  block_.buffers.push_back(
      {"x", Register::absolute, value.address, {DType::f32, {value.elements}}, MemoryKind::scratch, 0});
  return static_cast<int32_t>(block_.buffers.size()) - 1;
}

Value BlockBuilder::op(int64_t seconds, TimeKind time, const std::vector<Value>& reads) {
  const Value value = fresh(seconds);
  Instruction instruction;
  instruction.op = OpKind::fill_zero;
  for (const Value& read : reads) instruction.inputs.push_back(buffer(read));
  instruction.outputs = {buffer(value)};
  instruction.time = time;
  add(std::move(instruction));
  return value;
}

Value BlockBuilder::collective(GroupKind group, Queue queue, TimeKind time, const Value& value) {
  Instruction instruction = communication(InstructionKind::all_reduce, queue, time);
  instruction.inputs = instruction.outputs = {buffer(value)};
  instruction.group = group;
  add(std::move(instruction));
  return value;
}

void BlockBuilder::send(int peer, int channel, Queue queue, const Value& value) {
  Instruction instruction = communication(InstructionKind::send, queue, TimeKind::pipeline_comm);
  instruction.inputs = {buffer(value)};
  instruction.peer_stage = peer;
  instruction.channel = channel;
  add(std::move(instruction));
}

Value BlockBuilder::receive(int peer, int channel, Queue queue) {
  const Value value = fresh(1);
  Instruction instruction = communication(InstructionKind::receive, queue, TimeKind::pipeline_comm);
  instruction.outputs = {buffer(value)};
  instruction.peer_stage = peer;
  instruction.channel = channel;
  add(std::move(instruction));
  return value;
}

void BlockBuilder::wait_send(int channel, Queue queue) {
  Instruction instruction = communication(InstructionKind::wait_send, queue, TimeKind::pipeline_comm);
  instruction.channel = channel;
  add(std::move(instruction));
}

Block BlockBuilder::finish(std::string name) {
  block_.name = std::move(name);
  return std::move(block_);
}

std::vector<Program> pipeline(const Strategy& strategy, int micro_batches, const ChunkSeconds& seconds) {
  std::vector<Program> programs;
  for (int32_t stage = 0; stage < strategy.pp; ++stage) {
    Program program;
    program.name = "train";
    program.mesh = Mesh::of(strategy);
    program.stage = stage;
    program.micro_batches = micro_batches;
    const StageSchedule schedule = training_schedule(strategy, stage, micro_batches);
    program.schedule = schedule.entries;
    for (int32_t chunk = 0; chunk < strategy.virtual_stages; ++chunk) {
      Chunk made;
      made.virtual_stage = static_cast<int32_t>(virtual_stage_of(strategy, {stage, chunk}));
      made.slots = schedule.slots.at(static_cast<size_t>(chunk));
      program.chunks.push_back(made);
      add_chunk(program, strategy, {stage, chunk}, seconds);
    }
    programs.push_back(std::move(program));
  }
  return programs;
}

std::vector<Program> pipeline(int stages, int micro_batches, int64_t forward, int64_t backward) {
  Strategy strategy;
  strategy.pp = stages;
  return pipeline(strategy, micro_batches, {forward, backward, 0});
}

void add_optimizer(std::vector<Program>& stages, bool clips, int64_t seconds) {
  for (Program& program : stages) {
    BlockBuilder norm, update;
    if (clips) norm.collective(GroupKind::world, Queue::compute, TimeKind::optimizer);
    update.op(seconds, TimeKind::optimizer);
    add_call(program, Phase::grad_norm, 0, norm.finish("norm"));
    add_call(program, Phase::update, 0, update.finish("update"));
    for (const Phase phase : {Phase::grad_norm, Phase::update}) program.schedule.push_back({phase, 0, -1, 0, 0, true});
  }
}

Program sequence(const std::vector<std::pair<Phase, Block>>& blocks, const Mesh& mesh) {
  Program program;
  program.name = "train";
  program.mesh = mesh;
  program.chunks.resize(1);
  for (const auto& [phase, block] : blocks) {
    const bool first = program.calls[static_cast<size_t>(phase)].empty();
    if (first) program.schedule.push_back({phase, 0, 0, 0, 0, true});
    add_call(program, phase, 0, block);
  }
  return program;
}

Mesh mesh_of(int pp, int dp, int tp) {
  Mesh mesh;
  mesh.pp = pp, mesh.dp = dp, mesh.tp = tp;
  return mesh;
}

}  // namespace foresail::test
