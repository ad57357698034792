#include "program/lower.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "ops/op_table.h"

namespace foresail {
namespace {

OpInstance instance_of(const Graph& graph, const Node& node) {
  OpInstance op{node.kind, node.attributes, {}, {}};
  for (const int input : node.inputs) op.inputs.push_back(graph.tensors[input].type());
  for (const int output : node.outputs) op.outputs.push_back(graph.tensors[output].type());
  return op;
}

/// Workspace is counted in 4-byte units.
TensorType workspace_type(int64_t bytes) { return {DType::f32, {(bytes + 3) / 4}}; }

class Lowering {
 public:
  Lowering(const BlockRequest& request, const PlacedBlock& placed) : request_(request), placed_(placed) {
    result_.block.name = request.name;
    result_.scratch_end = placed.scratch_end;
  }

  LoweredBlock run(bool blocking) {
    for (size_t p = 0; p < request_.nodes.size(); ++p) lower_node(static_cast<int>(p), blocking);
    return std::move(result_);
  }

 private:
  int32_t add_buffer(std::string name, const Place& place, TensorType type) {
    result_.block.buffers.push_back({std::move(name), place.base, place.offset, std::move(type), place.memory});
    result_.in_scratch.push_back(place.in_scratch);
    return static_cast<int32_t>(result_.block.buffers.size()) - 1;
  }

  int32_t buffer_of(int tensor) {
    const auto found = buffers_.find(tensor);
    if (found != buffers_.end()) return found->second;
    const GraphTensor& source = request_.graph->tensors[tensor];
    const int32_t index = add_buffer(source.name, placed_.places.at(tensor), source.type());
    buffers_[tensor] = index;
    return index;
  }

  void lower_node(int position, bool blocking) {
    const PlannedNode& planned = request_.nodes[position];
    const Node& node = request_.graph->nodes[planned.node];
    Instruction instruction;
    instruction.op = node.kind;
    instruction.attributes = node.attributes;
    instruction.time = planned.time;
    for (const int input : node.inputs) instruction.inputs.push_back(buffer_of(input));
    for (const int output : node.outputs) instruction.outputs.push_back(buffer_of(output));
    if (node.collective != NodeCollective::none) {
      const bool gathers = node.collective == NodeCollective::all_gather_tensor;
      instruction.kind = gathers ? InstructionKind::all_gather : InstructionKind::all_reduce;
      if (!gathers) instruction.inputs = instruction.outputs;  // in place: the layout merged the two
      instruction.group = GroupKind::tensor;
      instruction.time = TimeKind::tensor_comm;
      instruction.queue = blocking ? Queue::compute : Queue::inline_comm;
    }
    if (const auto place = placed_.workspace_places.find(position); place != placed_.workspace_places.end()) {
      instruction.workspace = add_buffer("workspace", place->second, workspace_type(request_.workspace.at(position)));
    }
    result_.block.instructions.push_back(std::move(instruction));
  }

  const BlockRequest& request_;
  const PlacedBlock& placed_;
  LoweredBlock result_;
  std::map<int, int32_t> buffers_;
};

}  // namespace

LoweredBlock lower_block(BlockRequest request, const WorkspaceOf& workspace_of, bool blocking) {
  for (size_t p = 0; p < request.nodes.size(); ++p) {
    const Node& node = request.graph->nodes[request.nodes[p].node];
    if (node.collective != NodeCollective::none) continue;
    const int64_t bytes = workspace_of ? workspace_of(instance_of(*request.graph, node)) : 0;
    if (bytes > 0) request.workspace[static_cast<int>(p)] = bytes;
  }
  const PlacedBlock placed = place_block(request);
  return Lowering(request, placed).run(blocking);
}

LoweredBlock with_workspace(Block block, const WorkspaceOf& workspace_of, int64_t alignment) {
  LoweredBlock lowered{std::move(block), {}, 0};
  lowered.in_scratch.assign(lowered.block.buffers.size(), false);
  for (Instruction& instruction : lowered.block.instructions) {
    if (instruction.kind != InstructionKind::op) continue;
    const int64_t bytes = workspace_of(op_instance(lowered.block, instruction));
    if (bytes == 0) continue;
    instruction.workspace = static_cast<int32_t>(lowered.block.buffers.size());
    lowered.block.buffers.push_back({"workspace", Register::absolute, 0, workspace_type(bytes), MemoryKind::scratch});
    lowered.in_scratch.push_back(true);
    lowered.scratch_end = std::max(lowered.scratch_end, (bytes + alignment - 1) / alignment * alignment);
  }
  return lowered;
}

void relocate_scratch(LoweredBlock& lowered, int64_t scratch_offset) {
  for (size_t i = 0; i < lowered.block.buffers.size(); ++i) {
    if (lowered.in_scratch[i]) lowered.block.buffers[i].offset += scratch_offset;
  }
}

}  // namespace foresail
