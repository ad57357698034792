#include "program/step_blocks.h"

#include "core/error.h"
#include "program/shard.h"

namespace foresail {
namespace {

int32_t add_buffer(Block& block, std::string name, Register base, int64_t offset, TensorType type, MemoryKind memory) {
  block.buffers.push_back({std::move(name), base, offset, std::move(type), memory});
  return static_cast<int32_t>(block.buffers.size()) - 1;
}

Instruction op(OpKind kind, std::vector<int32_t> inputs, std::vector<int32_t> outputs) {
  Instruction instruction;
  instruction.op = kind;
  instruction.inputs = std::move(inputs);
  instruction.outputs = std::move(outputs);
  instruction.time = TimeKind::optimizer;
  return instruction;
}

Instruction all_reduce(int32_t buffer, GroupKind group, TimeKind time, Queue queue) {
  Instruction instruction;
  instruction.kind = InstructionKind::all_reduce;
  instruction.inputs = {buffer};
  instruction.outputs = {buffer};
  instruction.group = group;
  instruction.time = time;
  instruction.queue = queue;
  return instruction;
}

int32_t metrics_buffer(Block& block, const ArenaMap& arena, int64_t first, int64_t count) {
  return add_buffer(block, "metrics", Register::absolute, arena.metrics.offset + first * size_of(DType::f64),
                    {DType::f64, {count}}, MemoryKind::scratch);
}

int64_t local_elements(const Weight& weight, int64_t tensor_parallel) {
  int64_t elements = 1;
  for (const Dim& dim : weight.dims) elements *= local_size(dim, tensor_parallel);
  return elements;
}

int32_t gradient_buffer(Block& block, const StageShape& shape, const std::string& name, int64_t offset,
                        int64_t elements) {
  const DType dtype = shape.precision.gradient;
  return add_buffer(block, name, Register::gradient, offset * size_of(dtype), {dtype, {elements}},
                    MemoryKind::gradients);
}

}  // namespace

Block begin_step_block(const StageShape& shape, const ArenaMap& arena, bool training) {
  Block block{"begin_step", {}, {}};
  block.instructions.push_back(op(OpKind::fill_zero, {}, {metrics_buffer(block, arena, 0, 4)}));
  if (training) {
    const int32_t gradients = add_buffer(block, "gradients", Register::absolute, arena.gradients.offset,
                                         {shape.precision.gradient, {shape.parameter_elements}}, MemoryKind::gradients);
    block.instructions.push_back(op(OpKind::fill_zero, {}, {gradients}));
  }
  return block;
}

std::optional<Block> startup_block(const StageShape& shape, const ArenaMap& arena) {
  const Graph& graph = shape.block.graph;
  const int constant = graph.find(TensorRole::constant);
  if (constant < 0) return std::nullopt;
  Block block{"startup", {}, {}};
  const int32_t table = add_buffer(block, graph.tensors[constant].name, Register::absolute, arena.constants.offset,
                                   graph.tensors[constant].type(), MemoryKind::scratch);
  for (const Node& node : graph.nodes) {
    if (node.collective != NodeCollective::none || node.kind != OpKind::rope) continue;
    block.instructions.push_back(op(OpKind::rope_table, {}, {table}));
    block.instructions.back().attributes = node.attributes;
    return block;
  }
  ensure(false, "a constant table belongs to a rotation");
  return std::nullopt;
}

std::optional<Block> tensor_reduce_block(const StageShape& shape, const LayerKind& kind,
                                         const std::set<int>& partial_weights, bool blocking) {
  if (partial_weights.empty()) return std::nullopt;
  Block block{kind.graph.name + ".tensor_reduce", {}, {}};
  for (const int weight : partial_weights) {
    const Weight& which = kind.graph.weights[weight];
    const int32_t gradient = gradient_buffer(block, shape, "d_" + which.name, kind.unit.offsets[weight],
                                             local_elements(which, shape.strategy.tp));
    block.instructions.push_back(
        all_reduce(gradient, GroupKind::tensor, TimeKind::tensor_comm, blocking ? Queue::compute : Queue::inline_comm));
  }
  return block;
}

std::optional<Block> tied_reduce_block(const StageShape& shape, bool blocking) {
  if (!shape.tied_across_stages) return std::nullopt;
  const std::set<int>& tied = shape.head.second_holder;
  const Weight& weight = shape.head.graph.weights[*tied.begin()];
  int64_t offset = shape.head.unit.offsets[*tied.begin()];
  if (shape.first) {
    for (size_t w = 0; w < shape.embedding.graph.weights.size(); ++w) {
      if (shape.embedding.graph.weights[w].name == weight.tied_to) offset = shape.embedding.unit.offsets[w];
    }
  }
  Block block{"tied_reduce", {}, {}};
  const int32_t gradient =
      gradient_buffer(block, shape, "d_" + weight.name, offset, local_elements(weight, shape.strategy.tp));
  block.instructions.push_back(all_reduce(gradient, GroupKind::embedding, TimeKind::pipeline_comm,
                                          blocking ? Queue::compute : Queue::bulk_comm));
  return block;
}

std::optional<Block> data_reduce_block(const StageShape& shape, const ArenaMap& arena, bool blocking) {
  if (shape.strategy.dp == 1) return std::nullopt;
  Block block{"data_reduce", {}, {}};
  const int32_t gradients = add_buffer(block, "gradients", Register::absolute, arena.gradients.offset,
                                       {shape.precision.gradient, {shape.parameter_elements}}, MemoryKind::gradients);
  block.instructions.push_back(
      all_reduce(gradients, GroupKind::data, TimeKind::data_comm, blocking ? Queue::compute : Queue::bulk_comm));
  return block;
}

Block norm_block(const StageShape& shape, const LayerKind& kind, const ArenaMap& arena, const std::string& name) {
  Block block{name, {}, {}};
  const int32_t sum = metrics_buffer(block, arena, 1, 1);
  for (const FlatRange& range : kind.unit.ranges) {
    if (range.count_rule == CountRule::nobody) continue;
    const int32_t gradient = gradient_buffer(block, shape, "gradients", range.begin, range.end - range.begin);
    block.instructions.push_back(op(OpKind::squared_norm, {gradient}, {sum}));
    block.instructions.back().attributes.count_rule = range.count_rule;
  }
  return block;
}

Block finish_metrics_block(const StageShape& shape, const ArenaMap& arena, bool training, bool blocking) {
  Block block{"finish_metrics", {}, {}};
  if (shape.strategy.devices() > 1) {
    block.instructions.push_back(all_reduce(metrics_buffer(block, arena, 0, 2), GroupKind::world, TimeKind::optimizer,
                                            blocking ? Queue::compute : Queue::inline_comm));
  }
  if (training) {
    const int32_t metrics = metrics_buffer(block, arena, 0, 4);
    block.instructions.push_back(op(OpKind::clip_scale, {metrics}, {metrics}));
  }
  add_waits(block);
  return block;
}

Block update_block(const StageShape& shape, const LayerKind& kind, const ArenaMap& arena, const std::string& name) {
  Block block{name, {}, {}};
  const Precision& precision = shape.precision;
  const int32_t metrics = metrics_buffer(block, arena, 0, 4);
  std::vector<FlatRange> merged;  // the optimizer does not care who counts a range in the norm
  for (const FlatRange& range : kind.unit.ranges) {
    if (!merged.empty() && merged.back().decay == range.decay && merged.back().end == range.begin) {
      merged.back().end = range.end;
    } else {
      merged.push_back(range);
    }
  }
  for (const FlatRange& range : merged) {
    const int64_t elements = range.end - range.begin;
    const auto buffer = [&](const char* what, Register base, DType dtype, MemoryKind memory) {
      return add_buffer(block, what, base, range.begin * size_of(dtype), {dtype, {elements}}, memory);
    };
    const int32_t gradient = gradient_buffer(block, shape, "gradients", range.begin, elements);
    std::vector<int32_t> outputs{buffer("parameters", Register::parameter, precision.parameter, MemoryKind::parameters),
                                 buffer("moment1", Register::moment1, precision.moment, MemoryKind::optimizer),
                                 buffer("moment2", Register::moment2, precision.moment, MemoryKind::optimizer)};
    if (precision.master_copy) {
      outputs.push_back(buffer("master", Register::master, DType::f32, MemoryKind::optimizer));
    }
    block.instructions.push_back(op(OpKind::adamw, {gradient, metrics}, std::move(outputs)));
    block.instructions.back().attributes.decay = range.decay;
  }
  return block;
}

LoweredBlock message_block(const StageShape& shape, const MessageRequest& request, bool blocking) {
  LoweredBlock lowered;
  lowered.block.name = request.name;
  const auto add = [&](InstructionKind kind, int32_t channel) -> Instruction& {
    Instruction instruction;
    instruction.kind = kind;
    instruction.channel = channel;
    instruction.time = TimeKind::pipeline_comm;
    instruction.queue = blocking ? Queue::compute : Queue::pipeline;
    lowered.block.instructions.push_back(instruction);
    return lowered.block.instructions.back();
  };
  for (const int32_t channel : request.wait_channels) add(InstructionKind::wait_send, channel);
  if (request.kind == InstructionKind::wait_send) return lowered;
  const Place& place = request.place;
  const int32_t buffer = add_buffer(lowered.block, "hidden", place.base, place.offset,
                                    {shape.precision.activation, {shape.rows, shape.hidden}}, place.memory);
  lowered.in_scratch.push_back(place.in_scratch);
  Instruction& message = add(request.kind, request.channel);
  message.peer_stage = request.peer_stage;
  if (request.kind == InstructionKind::send) message.inputs = {buffer};
  if (request.kind == InstructionKind::receive) message.outputs = {buffer};
  return lowered;
}

}  // namespace foresail
