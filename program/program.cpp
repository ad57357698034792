#include "program/program.h"

#include "core/error.h"

namespace foresail {

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::startup: return "startup";
    case Phase::begin_step: return "begin_step";
    case Phase::forward: return "forward";
    case Phase::backward: return "backward";
    case Phase::reduce_gradients: return "reduce_gradients";
    case Phase::grad_norm: return "grad_norm";
    case Phase::update: return "update";
  }
  return "";
}

OpInstance op_instance(const Block& block, const Instruction& instruction) {
  OpInstance op{instruction.op, instruction.attributes, {}, {}};
  for (const int32_t input : instruction.inputs) op.inputs.push_back(block.buffers[input].type);
  for (const int32_t output : instruction.outputs) op.outputs.push_back(block.buffers[output].type);
  return op;
}

int64_t communication_bytes(const Block& block, const Instruction& instruction) {
  switch (instruction.kind) {
    case InstructionKind::all_reduce:
    case InstructionKind::all_gather:
    case InstructionKind::receive: return block.buffers[instruction.outputs.at(0)].type.bytes();
    case InstructionKind::send: return block.buffers[instruction.inputs.at(0)].type.bytes();
    default: return 0;
  }
}

RegisterFile registers_for(const Program& program, const Call& call, const ScheduleEntry& entry) {
  RegisterFile registers = call.base;
  const int64_t slot = program.arena.slots.offset + entry.slot * program.slot_bytes;
  registers[static_cast<size_t>(Register::saved)] += slot;
  registers[static_cast<size_t>(Register::x_in)] += slot;
  if (!call.leaves_stage) registers[static_cast<size_t>(Register::x_out)] += slot;
  if (entry.micro_batch >= 0) {
    registers[static_cast<size_t>(Register::data)] +=
        program.arena.data.offset + entry.micro_batch * program.data_stride_bytes;
  }
  return registers;
}

int32_t message_tag(int32_t channel, int32_t micro_batch) { return micro_batch * 2 + channel; }

}  // namespace foresail
