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
  if (entry.micro_batch < 0) return registers;
  const int64_t slots = program.arena.slots.offset;
  const auto addend = [&](Anchor anchor) -> int64_t {
    switch (anchor) {
      case Anchor::none: return 0;
      case Anchor::slot: return slots + entry.slot_offset;
      case Anchor::delayed_slot: return slots + entry.delayed_offset;
      case Anchor::carried_slot: return slots + entry.carried_offset;
      case Anchor::data: return program.arena.data.offset + entry.micro_batch * program.data_stride_bytes;
      case Anchor::scratch: return slots + entry.scratch_offset;
      case Anchor::outgoing: return entry.out_offset;
      case Anchor::outgoing_gradient: return entry.gradient_offset;
    }
    return 0;
  };
  for (size_t r = 0; r < registers.size(); ++r) registers[r] += addend(call.anchors[r]);
  return registers;
}

int32_t channel_count(const Program& program) {
  return 2 * program.mesh.pp * static_cast<int32_t>(std::max<size_t>(program.chunks.size(), 1));
}

int32_t message_tag(const Program& program, int32_t channel, int32_t micro_batch) {
  return micro_batch * channel_count(program) + channel;
}

}  // namespace foresail
