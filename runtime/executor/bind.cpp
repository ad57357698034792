#include "runtime/executor/bind.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "spec/mesh.h"

namespace foresail {
namespace {

/// Everything that binding one instruction looks at.
struct Binding {
  const Program& program;
  const Block& block;
  Device& device;
  const Communicator& communicator;
  const MeshGroups& groups;
  int world_rank;
  MeshCoordinate place;
};

const Buffer& buffer_at(const Block& block, int32_t index) {
  ensure(index >= 0 && index < static_cast<int32_t>(block.buffers.size()), "an operand is a buffer of its block");
  return block.buffers[static_cast<size_t>(index)];
}

BoundOperand operand_of(const Binding& binding, int32_t index) {
  const Buffer& buffer = buffer_at(binding.block, index);
  const Mesh& mesh = binding.program.mesh;
  const int32_t share = buffer.share_of == ShareOf::tensor   ? binding.place.tp
                        : buffer.share_of == ShareOf::expert ? mesh.expert_shard_rank(binding.place)
                                                             : mesh.shard_rank(binding.place);
  return {static_cast<uint8_t>(buffer.base), buffer.offset + share * buffer.shard_stride};
}

void bind_op(const Binding& binding, const Instruction& instruction, BoundBlock& bound, BoundInstruction& result) {
  const OpInstance op = op_instance(binding.block, instruction);
  result.kernel = binding.device.bind(op);
  const int64_t wanted = result.kernel->workspace_bytes();
  int64_t given = 0;
  if (instruction.workspace >= 0) {
    given = buffer_at(binding.block, instruction.workspace).type.bytes();
    result.workspace = static_cast<int32_t>(bound.operands.size());
    bound.operands.push_back(operand_of(binding, instruction.workspace));
  }
  if (wanted > given) {
    throw_bad_input(fmt::format("program '{}', {} ({})", binding.program.name, binding.block.name, signature(op)),
                    fmt::format("the {} back end wants {} bytes of workspace, the program gives {}",
                                binding.device.name(), wanted, given),
                    "plan again with a machine profiled on this host");
  }
}

void bind_collective(const Binding& binding, const Instruction& instruction, BoundInstruction& result) {
  ensure(instruction.inputs.size() == 1 && instruction.outputs.size() == 1,
         "a collective has one input and one output");
  result.group = binding.groups.index(instruction.group, binding.world_rank);
  ensure(result.group >= 0, "a rank takes part only in collectives of its own groups");
  const TensorType& input = buffer_at(binding.block, instruction.inputs[0]).type;
  const TensorType& output = buffer_at(binding.block, instruction.outputs[0]).type;
  ensure(input.dtype == output.dtype, "a collective keeps the element type");
  const int64_t members = binding.communicator.group_size(result.group);
  const int64_t parts_in = instruction.kind == InstructionKind::reduce_scatter ? members : 1;
  const int64_t parts_out = instruction.kind == InstructionKind::all_gather ? members : 1;
  ensure(input.elements() * parts_out == output.elements() * parts_in, "a collective's operands fit its group");
  result.dtype = input.dtype;
  result.count = std::min(input.elements(), output.elements());
  result.bytes = input.bytes();
  if (instruction.kind == InstructionKind::all_to_all) {
    ensure(result.count % members == 0, "an all-to-all exchanges a whole number of parts");
    result.count /= members;
  }
}

void bind_message(const Binding& binding, const Instruction& instruction, BoundInstruction& result) {
  result.channel = instruction.channel;
  ensure(result.channel >= 0 && result.channel < channel_count(binding.program),
         "a channel joins two virtual stages of the pipeline");
  result.keep = instruction.keep;
  if (instruction.kind == InstructionKind::wait_send) return;
  MeshCoordinate peer = binding.program.mesh.coordinate_of(binding.world_rank);
  peer.pp = instruction.peer_stage;
  result.peer = binding.program.mesh.rank_of(peer);
  result.bytes = communication_bytes(binding.block, instruction);
}

BoundInstruction bind_instruction(const Binding& binding, const Instruction& instruction, BoundBlock& bound) {
  BoundInstruction result;
  result.kind = instruction.kind;
  result.queue = instruction.queue;
  result.first_operand = static_cast<int32_t>(bound.operands.size());
  result.inputs = static_cast<int32_t>(instruction.inputs.size());
  result.outputs = static_cast<int32_t>(instruction.outputs.size());
  ensure(result.inputs + result.outputs <= kMostOperands, "an instruction has at most 16 operands");
  for (int32_t index : instruction.inputs) bound.operands.push_back(operand_of(binding, index));
  for (int32_t index : instruction.outputs) bound.operands.push_back(operand_of(binding, index));
  switch (instruction.kind) {
    case InstructionKind::op: bind_op(binding, instruction, bound, result); break;
    case InstructionKind::all_reduce:
    case InstructionKind::all_gather:
    case InstructionKind::reduce_scatter:
    case InstructionKind::all_to_all:
    case InstructionKind::ring_shift: bind_collective(binding, instruction, result); break;
    case InstructionKind::send:
    case InstructionKind::receive:
    case InstructionKind::wait_send: bind_message(binding, instruction, result); break;
  }
  return result;
}

}  // namespace

std::vector<BoundBlock> bind_blocks(const Program& program, Device& device, const Communicator& communicator,
                                    int world_rank) {
  const MeshGroups groups = mesh_groups(program.mesh);
  const MeshCoordinate place = program.mesh.coordinate_of(world_rank);
  std::vector<BoundBlock> bound;
  bound.reserve(program.blocks.size());
  for (const Block& block : program.blocks) {
    const Binding binding{program, block, device, communicator, groups, world_rank, place};
    BoundBlock& target = bound.emplace_back();
    target.instructions.reserve(block.instructions.size());
    for (const Instruction& instruction : block.instructions) {
      target.instructions.push_back(bind_instruction(binding, instruction, target));
    }
  }
  return bound;
}

DataOperands find_data_operands(const Program& program) {
  DataOperands found;
  const auto take = [](const Block& block, const Instruction& instruction, size_t input, int64_t& offset) {
    ensure(input < instruction.inputs.size(), "an op that reads token ids has its operands");
    const Buffer& buffer = buffer_at(block, instruction.inputs[input]);
    if (buffer.base == Register::data) offset = buffer.offset;
  };
  for (const Block& block : program.blocks) {
    for (const Instruction& instruction : block.instructions) {
      if (instruction.kind != InstructionKind::op) continue;
      switch (instruction.op) {
        case OpKind::embedding: take(block, instruction, 0, found.tokens_offset); break;
        case OpKind::embedding_backward: take(block, instruction, 1, found.tokens_offset); break;
        case OpKind::cross_entropy:
        case OpKind::cross_entropy_stats:
        case OpKind::cross_entropy_backward:
        case OpKind::cross_entropy_loss:
        case OpKind::moe_balance_loss:
        case OpKind::moe_balance_backward: take(block, instruction, 1, found.targets_offset); break;
        case OpKind::moe_statistics: take(block, instruction, 2, found.targets_offset); break;
        default: break;
      }
    }
  }
  return found;
}

}  // namespace foresail
