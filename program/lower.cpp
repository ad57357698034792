#include "program/lower.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/round_up.h"
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

/// How a collective of a graph runs.
struct CollectiveForm {
  InstructionKind kind;
  GroupKind group;
  TimeKind time;
};

CollectiveForm form_of(NodeCollective collective) {
  using enum InstructionKind;
  switch (collective) {
    case NodeCollective::all_reduce_tensor: return {all_reduce, GroupKind::tensor, TimeKind::tensor_comm};
    case NodeCollective::all_gather_tensor:
    case NodeCollective::all_gather_rows: return {all_gather, GroupKind::tensor, TimeKind::tensor_comm};
    case NodeCollective::reduce_scatter_rows: return {reduce_scatter, GroupKind::tensor, TimeKind::tensor_comm};
    case NodeCollective::all_to_all_context: return {all_to_all, GroupKind::context, TimeKind::context_comm};
    case NodeCollective::ring_shift_context: return {ring_shift, GroupKind::context, TimeKind::context_comm};
    case NodeCollective::all_reduce_context: return {all_reduce, GroupKind::context, TimeKind::context_comm};
    case NodeCollective::all_to_all_expert: return {all_to_all, GroupKind::expert, TimeKind::expert_comm};
    case NodeCollective::all_gather_expert: return {all_gather, GroupKind::expert_tensor, TimeKind::expert_comm};
    case NodeCollective::reduce_scatter_expert:
      return {reduce_scatter, GroupKind::expert_tensor, TimeKind::expert_comm};
    case NodeCollective::none: break;
  }
  ensure(false, "an operator is no collective");
  return {};
}

class Lowering {
 public:
  Lowering(const BlockRequest& request, const PlacedBlock& placed) : request_(request), placed_(placed) {
    result_.block.name = request.name;
    result_.scratch_bytes = placed.scratch_end;
    result_.carried_bytes = placed.carried_end;
    for (const int tensor : request.carried) result_.carried_places[tensor] = placed.places.at(tensor);
  }

  LoweredBlock run(const QueuePolicy& queues) {
    for (size_t p = 0; p < request_.nodes.size(); ++p) lower_node(static_cast<int>(p), queues);
    return std::move(result_);
  }

 private:
  int32_t add_buffer(std::string name, const Place& place, TensorType type) {
    result_.block.buffers.push_back(
        {std::move(name), place.base, place.offset, std::move(type), place.memory, place.share_stride, place.share_of});
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

  void lower_node(int position, const QueuePolicy& queues) {
    const PlannedNode& planned = request_.nodes[position];
    const Node& node = request_.graph->nodes[planned.node];
    Instruction instruction;
    instruction.op = node.kind;
    instruction.attributes = node.attributes;
    instruction.time = planned.time;
    for (const int input : node.inputs) instruction.inputs.push_back(buffer_of(input));
    for (const int output : node.outputs) instruction.outputs.push_back(buffer_of(output));
    if (node.collective != NodeCollective::none) {
      const CollectiveForm form = form_of(node.collective);
      instruction.kind = form.kind;
      instruction.group = form.group;
      instruction.time = form.time;
      instruction.queue = queues.inline_queue();
      if (form.kind == InstructionKind::all_reduce) instruction.inputs = instruction.outputs;  // merged by the layout
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

LoweredBlock lower_block(BlockRequest request, const WorkspaceOf& workspace_of, const QueuePolicy& queues) {
  for (size_t p = 0; p < request.nodes.size(); ++p) {
    const Node& node = request.graph->nodes[request.nodes[p].node];
    if (node.collective != NodeCollective::none) continue;
    const int64_t bytes = workspace_of ? workspace_of(instance_of(*request.graph, node)) : 0;
    if (bytes > 0) request.workspace[static_cast<int>(p)] = bytes;
  }
  const PlacedBlock placed = place_block(request);
  return Lowering(request, placed).run(queues);
}

LoweredBlock with_workspace(Block block, const WorkspaceOf& workspace_of, int64_t alignment, int64_t scratch_begin) {
  LoweredBlock lowered;
  lowered.block = std::move(block);
  lowered.scratch_bytes = scratch_begin;
  for (Instruction& instruction : lowered.block.instructions) {
    if (instruction.kind != InstructionKind::op) continue;
    const int64_t bytes = workspace_of(op_instance(lowered.block, instruction));
    if (bytes == 0) continue;
    instruction.workspace = static_cast<int32_t>(lowered.block.buffers.size());
    lowered.block.buffers.push_back(
        {"workspace", Register::scratch, scratch_begin, workspace_type(bytes), MemoryKind::scratch});
    lowered.scratch_bytes = std::max(lowered.scratch_bytes, scratch_begin + round_up(bytes, alignment));
  }
  return lowered;
}

}  // namespace foresail
