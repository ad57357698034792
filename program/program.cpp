#include "program/program.h"

#include <algorithm>

#include "core/error.h"

namespace foresail {

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::startup: return "startup";
    case Phase::begin_step: return "begin_step";
    case Phase::forward: return "forward";
    case Phase::backward: return "backward";
    case Phase::weight_gradient: return "weight_gradient";
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

bool is_collective(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::all_reduce:
    case InstructionKind::all_gather:
    case InstructionKind::reduce_scatter:
    case InstructionKind::all_to_all:
    case InstructionKind::ring_shift: return true;
    case InstructionKind::op:
    case InstructionKind::send:
    case InstructionKind::receive:
    case InstructionKind::wait_send: return false;
  }
  return false;
}

int64_t communication_bytes(const Block& block, const Instruction& instruction) {
  switch (instruction.kind) {
    case InstructionKind::all_reduce:
    case InstructionKind::all_gather:
    case InstructionKind::receive: return block.buffers[instruction.outputs.at(0)].type.bytes();
    case InstructionKind::reduce_scatter:
    case InstructionKind::all_to_all:
    case InstructionKind::ring_shift:
    case InstructionKind::send: return block.buffers[instruction.inputs.at(0)].type.bytes();
    case InstructionKind::op:
    case InstructionKind::wait_send: return 0;
  }
  return 0;
}

const std::vector<Call>& calls_of(const Program& program, const ScheduleEntry& entry) {
  static const std::vector<Call> none;
  const auto& lists = program.calls[static_cast<size_t>(entry.phase)];
  const auto chunk = static_cast<size_t>(entry.chunk);
  return chunk < lists.size() ? lists[chunk] : none;
}

int64_t sequences_per_micro_batch(const Program& program) {
  return program.rows_per_micro_batch * program.mesh.cp / program.sequence_length;
}

RegisterFile registers_for(const Program& program, const Call& call, const ScheduleEntry& entry) {
  RegisterFile registers = call.base;
  const auto move = [&](Register base, int64_t bytes) { registers[static_cast<size_t>(base)] += bytes; };
  if (entry.micro_batch < 0) return registers;
  const int64_t slot = program.arena.slots.offset + entry.slot_offset;
  move(Register::saved, slot);
  move(Register::x_in, slot);
  move(Register::x_out, call.leaves_stage ? entry.out_offset : slot);
  move(Register::hidden_gradient, entry.gradient_offset);
  move(Register::carried, call.carries_in_slot ? slot : program.arena.slots.offset + entry.carried_offset);
  move(Register::data, program.arena.data.offset + entry.micro_batch * program.data_stride_bytes);
  return registers;
}

int32_t channel_count(const Program& program) {
  return 2 * program.mesh.pp * static_cast<int32_t>(std::max<size_t>(program.chunks.size(), 1));
}

int32_t message_tag(const Program& program, int32_t channel, int32_t micro_batch) {
  return micro_batch * channel_count(program) + channel;
}

}  // namespace foresail
