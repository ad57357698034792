// Operands: shapes that the op table infers, sizes that a group's ranks exchange, one queue for each group, channels of the
// chunk that uses them.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "ops/op_table.h"
#include "program/attribute_sizes.h"
#include "program/check_parts.h"
#include "program/operand_sizes.h"

namespace foresail {
namespace {

class OperandCheck {
 public:
  OperandCheck(const Program& program, Problems& problems) : program_(program), problems_(problems) {}

  void run() {
    for (const Block& block : program_.blocks) {
      for (const Instruction& instruction : block.instructions) {
        if (instruction.kind == InstructionKind::op) check_shapes(block, instruction);
        if (is_collective(instruction.kind)) check_collective(block, instruction);
      }
    }
    check_channels();
  }

 private:
  const Buffer& buffer(const Block& block, int32_t index) const { return block.buffers[static_cast<size_t>(index)]; }

  /// Operands fit each other, and outputs have the shapes that the op table infers from the inputs.
  void check_shapes(const Block& block, const Instruction& instruction) {
    const auto problem = [&](const std::string& text) { problems_.add(block, instruction, text); };
    if (!operands_agree(op_instance(block, instruction), program_.mesh.tp)) {
      problem(
          fmt::format("operands of {} do not fit \"{}\"", name_of(instruction.op), operand_pattern(instruction.op)));
      return;
    }
    if (!attributes_agree(op_instance(block, instruction))) {
      problem(fmt::format("attributes of {} do not fit its operands", name_of(instruction.op)));
      return;
    }
    const OpAttributes& attributes = instruction.attributes;
    const int64_t length = program_.sequence_length;
    if (attributes.sequence_length != 0 && attributes.sequence_length != length &&
        attributes.sequence_length != length / program_.mesh.cp) {
      problem(fmt::format("{} has sequences of {} tokens", name_of(instruction.op), attributes.sequence_length));
    }
    if (!info(instruction.op).infer) return;
    std::vector<GraphTensor> inputs;
    for (const int32_t input : instruction.inputs) {
      GraphTensor tensor{buffer(block, input).name, TensorRole::activation, buffer(block, input).type.dtype, {}, -1};
      for (const int64_t size : buffer(block, input).type.shape) tensor.dims.push_back({DimName::fixed, size});
      inputs.push_back(std::move(tensor));
    }
    try {
      const auto inferred = info(instruction.op).infer(inputs, instruction.attributes, program_.precision);
      if (inferred.size() != instruction.outputs.size()) problem("it has the wrong number of outputs");
      for (size_t i = 0; i < std::min(inferred.size(), instruction.outputs.size()); ++i) {
        const Buffer& output = buffer(block, instruction.outputs[i]);
        TensorType expected{inferred[i].dtype, {}};
        for (const Dim& dim : inferred[i].dims) expected.shape.push_back(dim.size);
        if (expected != output.type) problem(fmt::format("output '{}' has the wrong shape", output.name));
      }
    } catch (const std::exception& error) {
      problem(fmt::format("operands do not fit {} ({})", name_of(instruction.op), error.what()));
    }
  }

  /// Sizes that the members of the group agree on, and one queue: members must meet in one order.
  void check_collective(const Block& block, const Instruction& instruction) {
    const int64_t members = group_size(program_, instruction.group);
    if (members == 0) {
      problems_.add(block, instruction,
                    fmt::format("stage {} is in no {} group", program_.stage, name_of(instruction.group)));
      return;
    }
    const auto queue = queue_of_group_.try_emplace(instruction.group, instruction.queue).first->second;
    if (queue != instruction.queue && members > 1) {
      problems_.add(block, instruction,
                    fmt::format("collectives of the {} group are on two queues", name_of(instruction.group)));
    }
    const TensorType& input = buffer(block, instruction.inputs[0]).type;
    const TensorType& output = buffer(block, instruction.outputs[0]).type;
    if (input.dtype != output.dtype) problems_.add(block, instruction, "a collective changes the element type");
    const int64_t in = input.elements(), out = output.elements();
    bool fits = in == out;
    if (instruction.kind == InstructionKind::all_gather) fits = out % members == 0 && out / members == in;
    if (instruction.kind == InstructionKind::reduce_scatter) fits = in % members == 0 && in / members == out;
    if (instruction.kind == InstructionKind::all_to_all) fits = in == out && in % members == 0;
    if (!fits) {
      problems_.add(block, instruction,
                    fmt::format("{} elements to {} do not fit a group of {} ranks", in, out, members));
    }
  }

  /// A chunk sends its hidden states over the boundary behind it and their gradient over the one before it. Messages of a
  /// channel stay in order only on one queue.
  void check_channels() {
    std::map<std::pair<InstructionKind, int32_t>, Queue> queues;
    for (size_t phase = 0; phase < program_.calls.size(); ++phase) {
      for (size_t chunk = 0; chunk < program_.calls[phase].size(); ++chunk) {
        for (const Call& call : program_.calls[phase][chunk]) {
          const Block& block = program_.blocks[static_cast<size_t>(call.block)];
          for (const Instruction& instruction : block.instructions) {
            const bool message =
                instruction.kind == InstructionKind::send || instruction.kind == InstructionKind::receive;
            if (!message) continue;
            check_message(block, instruction, static_cast<Phase>(phase), chunk);
            const auto key = std::pair(instruction.kind, instruction.channel);
            if (queues.try_emplace(key, instruction.queue).first->second != instruction.queue) {
              problems_.add(block, instruction, fmt::format("channel {} is on two queues", instruction.channel));
            }
          }
        }
      }
    }
  }

  void check_message(const Block& block, const Instruction& instruction, Phase phase, size_t chunk) {
    if (instruction.peer_stage == program_.stage) problems_.add(block, instruction, "a stage sends to itself");
    const bool forward = phase == Phase::forward;
    if ((!forward && phase != Phase::backward) || chunk >= program_.chunks.size()) {
      problems_.add(block, instruction, "a message belongs to forward or backward of a chunk");
      return;
    }
    const int32_t here = program_.chunks[chunk].virtual_stage;
    const bool sends = instruction.kind == InstructionKind::send;
    const int32_t boundary = forward == sends ? here : here - 1;
    const int32_t channel = 2 * boundary + (forward ? 0 : 1);
    const int32_t boundaries = channel_count(program_) / 2 - 1;
    if (instruction.channel != channel || boundary < 0 || boundary >= boundaries) {
      problems_.add(block, instruction,
                    fmt::format("channel {} is not that of virtual stage {}", instruction.channel, here));
    }
  }

  const Program& program_;
  Problems& problems_;
  std::map<GroupKind, Queue> queue_of_group_;
};

}  // namespace

int64_t group_size(const Program& program, GroupKind group) {
  const Mesh& mesh = program.mesh;
  switch (group) {
    case GroupKind::world: return mesh.size();
    case GroupKind::tensor: return mesh.tp;
    case GroupKind::context: return mesh.cp;
    case GroupKind::shard: return mesh.shard;
    case GroupKind::replica: return mesh.data_ranks() / mesh.shard;
    case GroupKind::kv_copies: return mesh.kv_copies;
    case GroupKind::embedding: {
      const bool member = program.stage == 0 || program.stage == mesh.pp - 1;
      return mesh.pp > 1 && mesh.embedding_pair && member ? 2 : 0;
    }
    case GroupKind::expert: return mesh.has_experts ? mesh.ep : 0;
    case GroupKind::expert_tensor: return mesh.has_experts ? mesh.etp : 0;
    case GroupKind::expert_shard: return mesh.has_experts ? mesh.expert_shard : 0;
    case GroupKind::expert_replica: return mesh.has_experts ? mesh.edp() / mesh.expert_shard : 0;
  }
  return 0;
}

void check_operands(const Program& program, Problems& problems) { OperandCheck(program, problems).run(); }

}  // namespace foresail
