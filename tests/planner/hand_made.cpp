#include "tests/planner/hand_made.h"

#include "program/schedule.h"

namespace foresail::test {

int32_t BlockBuilder::buffer(int64_t elements) {
  block_.buffers.push_back({"x", Register::absolute, 0, {DType::f32, {elements}}, MemoryKind::scratch});
  return static_cast<int32_t>(block_.buffers.size()) - 1;
}

int BlockBuilder::add(Instruction instruction) {
  block_.instructions.push_back(std::move(instruction));
  return static_cast<int>(block_.instructions.size()) - 1;
}

int BlockBuilder::op(int64_t seconds, TimeKind time, std::vector<int32_t> waits) {
  Instruction instruction;
  instruction.op = OpKind::fill_zero;
  instruction.outputs = {buffer(seconds)};
  instruction.time = time;
  instruction.waits = std::move(waits);
  return add(std::move(instruction));
}

int BlockBuilder::collective(GroupKind group, Queue queue, TimeKind time, std::vector<int32_t> waits) {
  Instruction instruction;
  instruction.kind = InstructionKind::all_reduce;
  instruction.outputs = {buffer(1)};
  instruction.group = group;
  instruction.queue = queue;
  instruction.time = time;
  instruction.waits = std::move(waits);
  return add(std::move(instruction));
}

int BlockBuilder::send(int peer, int channel, Queue queue) {
  Instruction instruction;
  instruction.kind = InstructionKind::send;
  instruction.inputs = {buffer(1)};
  instruction.peer_stage = peer;
  instruction.channel = channel;
  instruction.queue = queue;
  instruction.time = TimeKind::pipeline_comm;
  return add(std::move(instruction));
}

int BlockBuilder::receive(int peer, int channel, Queue queue) {
  Instruction instruction;
  instruction.kind = InstructionKind::receive;
  instruction.outputs = {buffer(1)};
  instruction.peer_stage = peer;
  instruction.channel = channel;
  instruction.queue = queue;
  instruction.time = TimeKind::pipeline_comm;
  return add(std::move(instruction));
}

int BlockBuilder::wait_send(int channel) {
  Instruction instruction;
  instruction.kind = InstructionKind::wait_send;
  instruction.channel = channel;
  instruction.time = TimeKind::pipeline_comm;
  return add(std::move(instruction));
}

Block BlockBuilder::finish(std::string name) {
  block_.name = std::move(name);
  return std::move(block_);
}

std::vector<Program> pipeline(int stages, int micro_batches, int64_t forward, int64_t backward) {
  std::vector<Program> programs;
  for (int stage = 0; stage < stages; ++stage) {
    Program program;
    program.name = "train";
    program.mesh = {stages, 1, 1};
    program.stage = stage;
    program.micro_batches = micro_batches;
    BlockBuilder f, b;
    if (stage > 0) f.receive(stage - 1, 0);
    f.op(forward);
    if (stage + 1 < stages) f.send(stage + 1, 0);
    if (stage + 1 < stages) b.receive(stage + 1, 1);
    b.op(backward);
    if (stage > 0) b.send(stage - 1, 1);
    program.blocks = {f.finish("forward"), b.finish("backward")};
    program.calls[static_cast<size_t>(Phase::forward)] = {{0, 0, {}}};
    program.calls[static_cast<size_t>(Phase::backward)] = {{1, 0, {}}};
    program.schedule = one_f_one_b(stages, stage, micro_batches);
    programs.push_back(std::move(program));
  }
  return programs;
}

Program sequence(std::vector<std::pair<Phase, Block>> blocks, Mesh mesh) {
  Program program;
  program.name = "train";
  program.mesh = mesh;
  for (auto& [phase, block] : blocks) {
    auto& calls = program.calls[static_cast<size_t>(phase)];
    if (calls.empty()) program.schedule.push_back({phase, 0, 0, 0});
    calls.push_back({static_cast<int32_t>(program.blocks.size()), 0, {}});
    program.blocks.push_back(std::move(block));
  }
  return program;
}

}  // namespace foresail::test
