#include "program/step_blocks.h"

#include "core/error.h"
#include "program/block_parts.h"

namespace foresail {
namespace {

int32_t hidden_buffer(Block& block, const StageShape& shape, const Place& place) {
  return add_buffer(block, "hidden", place.base, place.offset,
                    {shape.precision.activation, {shape.hidden_rows, shape.hidden}}, place.memory);
}

}  // namespace

Block begin_step_block(const StageShape& shape, const ArenaMap& arena, bool training) {
  Block block{"begin_step", {}, {}};
  const auto zero = [&](int32_t buffer) {
    block.instructions.push_back(operation(OpKind::fill_zero, {}, {buffer}, TimeKind::optimizer));
  };
  zero(metrics_record(block, arena));
  if (training) {
    zero(add_buffer(block, "gradients", Register::absolute, arena.gradients.offset,
                    {shape.accumulate_dtype(), {shape.held(2)}}, MemoryKind::gradients));
  }
  return block;
}

std::optional<Block> startup_block(const StageShape& shape, const ArenaMap& arena) {
  const GraphTensor* constant = constant_table(shape);
  if (constant == nullptr) return std::nullopt;
  Block block{"startup", {}, {}};
  const int32_t table = add_buffer(block, constant->name, Register::absolute, arena.constants.offset, constant->type(),
                                   MemoryKind::scratch);
  for (const LayerKind* kind : shape.kinds_of_blocks()) {
    for (const Node& node : kind->graph.nodes) {
      if (node.collective != NodeCollective::none) continue;
      if (node.kind != OpKind::rope && node.kind != OpKind::latent_join) continue;
      block.instructions.push_back(operation(OpKind::rope_table, {}, {table}, TimeKind::compute));
      block.instructions.back().attributes = node.attributes;
      return block;
    }
  }
  ensure(false, "a constant table belongs to a rotation");
  return std::nullopt;
}

Block finish_metrics_block(const StageShape& shape, const ArenaMap& arena, bool training, const QueuePolicy& queues) {
  Block block{"finish_metrics", {}, {}};
  if (shape.strategy.devices() > 1) {
    const int32_t sums = metrics_buffer(block, arena, StepMetric{}, kSummedMetrics);
    block.instructions.push_back(collective(InstructionKind::all_reduce, sums, sums, GroupKind::world,
                                            TimeKind::optimizer, queues.inline_queue()));
  }
  if (training) {
    const int32_t metrics = metrics_record(block, arena);
    block.instructions.push_back(operation(OpKind::clip_scale, {metrics}, {metrics}, TimeKind::optimizer));
  }
  return block;
}

Block message_block(const StageShape& shape, const Message& message, const QueuePolicy& queues) {
  Block block{message.name, {}, {}};
  const int32_t buffer = hidden_buffer(block, shape, message.place);
  Instruction instruction;
  instruction.kind = message.kind;
  instruction.channel = message.channel;
  instruction.peer_stage = message.peer_stage;
  instruction.time = TimeKind::pipeline_comm;
  instruction.queue = queues.pipeline_queue();
  if (message.kind == InstructionKind::send) instruction.inputs = {buffer};
  if (message.kind == InstructionKind::receive) instruction.outputs = {buffer};
  block.instructions.push_back(std::move(instruction));
  return block;
}

Block wait_block(const std::vector<int32_t>& channels, int32_t keep, const QueuePolicy& queues) {
  Block block{"wait_send", {}, {}};
  for (const int32_t channel : channels) {
    Instruction instruction;
    instruction.kind = InstructionKind::wait_send;
    instruction.channel = channel;
    instruction.keep = keep;
    instruction.time = TimeKind::pipeline_comm;
    instruction.queue = queues.pipeline_queue();
    block.instructions.push_back(std::move(instruction));
  }
  return block;
}

Block copy_block(const StageShape& shape, const Place& from, const Place& to) {
  Block block{"hand_over", {}, {}};
  const int32_t input = hidden_buffer(block, shape, from);
  const int32_t output = hidden_buffer(block, shape, to);
  block.instructions.push_back(operation(OpKind::copy, {input}, {output}, TimeKind::compute));
  return block;
}

}  // namespace foresail
