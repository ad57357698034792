#include "program/unit_blocks.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/round_up.h"
#include "program/block_parts.h"

namespace foresail {
namespace {

/// The ranges of a part, in order.
std::vector<FlatRange> ranges_of(const UnitPart& part) {
  std::vector<FlatRange> ranges;
  for (const FlatRange& range : part.kind->unit.ranges) {
    if (range.begin >= part.begin && range.end <= part.end) ranges.push_back(range);
  }
  return ranges;
}

/// A range, whole, behind a register whose segment (or transient buffer) holds whole units.
int32_t whole_buffer(Block& block, const char* name, Register base, const FlatRange& range, DType dtype,
                     MemoryKind memory) {
  return add_buffer(block, name, base, range.begin * size_of(dtype), {dtype, {range.end - range.begin}}, memory);
}

/// This shard rank's share of a range inside the whole one.
int32_t own_part_buffer(Block& block, const StageShape& shape, const char* name, Register base, const FlatRange& range,
                        DType dtype, MemoryKind memory) {
  const int64_t share = (range.end - range.begin) / shape.mesh.shard;
  return add_buffer(block, name, base, range.begin * size_of(dtype), {dtype, {share}}, memory, share * size_of(dtype));
}

/// This shard rank's share of a range in a segment that holds nothing else.
int32_t shard_buffer(Block& block, const StageShape& shape, const char* name, Register base, const FlatRange& range,
                     DType dtype, MemoryKind memory) {
  const int64_t shard = shape.mesh.shard;
  return add_buffer(block, name, base, range.begin / shard * size_of(dtype),
                    {dtype, {(range.end - range.begin) / shard}}, memory);
}

/// What norm and optimizer see of a range's reduced gradient.
int32_t reduced_gradient(Block& block, const StageShape& shape, const FlatRange& range) {
  const DType dtype = shape.accumulate_dtype();
  const auto make = shape.shards_gradients() ? shard_buffer : own_part_buffer;
  return make(block, shape, "gradients", Register::gradient_shard, range, dtype, MemoryKind::gradients);
}

int32_t updated_parameters(Block& block, const StageShape& shape, const FlatRange& range) {
  const DType dtype = shape.precision.parameter;
  const auto make = shape.shards_parameters() ? shard_buffer : own_part_buffer;
  return make(block, shape, "parameters", Register::parameter_shard, range, dtype, MemoryKind::parameters);
}

/// An operator of the optimizer or of a reduction on the queue that owns its data.
Instruction bulk_operation(OpKind kind, std::vector<int32_t> inputs, std::vector<int32_t> outputs, Queue queue) {
  Instruction instruction = operation(kind, std::move(inputs), std::move(outputs), TimeKind::data_comm);
  instruction.queue = queue;
  return instruction;
}

bool replicated(const StageShape& shape) { return shape.mesh.data_ranks() > shape.mesh.shard; }

/// Reduces `sum` (a whole range or bucket) over the data ranks; `part` is what this rank keeps of it.
void reduce(Block& block, const StageShape& shape, int32_t sum, int32_t part, Queue queue) {
  using enum InstructionKind;
  auto& out = block.instructions;
  if (shape.mesh.shard > 1) {
    out.push_back(collective(reduce_scatter, sum, part, GroupKind::shard, TimeKind::data_comm, queue));
  }
  if (replicated(shape)) {
    out.push_back(collective(all_reduce, part, part, GroupKind::replica, TimeKind::data_comm, queue));
  }
}

/// Where a reduction in another element type happens: a copy of the whole range at the begin of scratch.
struct Staging {
  int32_t sum, part;
};
Staging stage(LoweredBlock& lowered, const StageShape& shape, int32_t gradients, int64_t elements, Queue queue) {
  const DType dtype = shape.reduce_dtype();
  Block& block = lowered.block;
  const int64_t share = elements / shape.mesh.shard;
  const int32_t sum = add_buffer(block, "staged", Register::scratch, 0, {dtype, {elements}}, MemoryKind::scratch);
  const int32_t part = shape.mesh.shard == 1 ? sum
                                             : add_buffer(block, "staged", Register::scratch, 0, {dtype, {share}},
                                                          MemoryKind::scratch, share * size_of(dtype));
  block.instructions.push_back(bulk_operation(OpKind::cast, {gradients}, {sum}, queue));
  lowered.scratch_bytes = std::max(lowered.scratch_bytes, round_up(elements * size_of(dtype), shape.alignment));
  return {sum, part};
}

}  // namespace

UnitPart whole(const LayerKind& kind) { return {&kind, 0, kind.unit.elements}; }
UnitPart products(const LayerKind& kind) { return {&kind, kind.unit.products_begin, kind.unit.elements}; }
UnitPart others(const LayerKind& kind) { return {&kind, 0, kind.unit.products_begin}; }

Block gather_block(const StageShape& shape, const UnitPart& part, const QueuePolicy& queues) {
  Block block{part.kind->graph.name + ".gather", {}, {}};
  const DType dtype = shape.precision.parameter;
  for (const FlatRange& range : ranges_of(part)) {
    const int32_t own =
        shard_buffer(block, shape, "parameters", Register::parameter_shard, range, dtype, MemoryKind::parameters);
    const int32_t all = whole_buffer(block, "gathered", part.parameter(), range, dtype, MemoryKind::scratch);
    block.instructions.push_back(
        collective(InstructionKind::all_gather, own, all, GroupKind::shard, TimeKind::data_comm, queues.bulk_queue()));
  }
  return block;
}

Block zero_block(const StageShape& shape, const UnitPart& part) {
  Block block{part.kind->graph.name + ".zero", {}, {}};
  const DType dtype = shape.precision.gradient;
  for (const FlatRange& range : ranges_of(part)) {  // one by one, as they are reduced
    const int32_t gradients =
        whole_buffer(block, "transient gradients", part.gradient(), range, dtype, MemoryKind::scratch);
    block.instructions.push_back(operation(OpKind::fill_zero, {}, {gradients}, TimeKind::compute));
  }
  return block;
}

Block accumulate_block(const StageShape& shape, const UnitPart& part) {
  Block block{part.kind->graph.name + ".accumulate", {}, {}};
  for (const FlatRange& range : ranges_of(part)) {
    const int32_t added = whole_buffer(block, "transient gradients", part.gradient(), range, shape.precision.gradient,
                                       MemoryKind::scratch);
    const int32_t sum = whole_buffer(block, "gradients", Register::gradient_shard, range, shape.accumulate_dtype(),
                                     MemoryKind::gradients);
    block.instructions.push_back(operation(OpKind::add, {sum, added}, {sum}, TimeKind::compute));
  }
  return block;
}

namespace {

/// ZeRO-2 and 3: a micro-batch's gradients, summed over ranks, join the shard.
void add_reduced(LoweredBlock& lowered, const StageShape& shape, const UnitPart& part, const FlatRange& range,
                 Queue queue) {
  Block& block = lowered.block;
  const DType dtype = shape.precision.gradient;
  const int32_t sum = whole_buffer(block, "gradients", part.gradient(), range, dtype, MemoryKind::scratch);
  int32_t own = -1;
  if (shape.reduce_dtype() == dtype) {
    own = own_part_buffer(block, shape, "own gradients", part.gradient(), range, dtype, MemoryKind::scratch);
    reduce(block, shape, sum, own, queue);
  } else {
    const Staging staging = stage(lowered, shape, sum, range.end - range.begin, queue);
    reduce(block, shape, staging.sum, staging.part, queue);
    own = staging.part;  // added as it was summed: rounded once, to what accumulates
  }
  const int32_t kept = reduced_gradient(block, shape, range);
  block.instructions.push_back(bulk_operation(OpKind::add, {kept, own}, {kept}, queue));
}

/// Persistent gradients (`sum`, of which this rank keeps `own`) are reduced in place, or in another type and come back.
void reduce_persistent(LoweredBlock& lowered, const StageShape& shape, int32_t sum, int32_t own, Queue queue) {
  Block& block = lowered.block;
  if (shape.reduce_dtype() == shape.accumulate_dtype()) return reduce(block, shape, sum, own, queue);
  const int64_t elements = block.buffers[static_cast<size_t>(sum)].type.elements();
  const Staging staging = stage(lowered, shape, sum, elements, queue);
  reduce(block, shape, staging.sum, staging.part, queue);
  block.instructions.push_back(bulk_operation(OpKind::cast, {staging.part}, {own}, queue));
}

}  // namespace

LoweredBlock reduce_block(const StageShape& shape, const UnitPart& part, const QueuePolicy& queues) {
  LoweredBlock lowered;
  lowered.block.name = part.kind->graph.name + ".reduce";
  const Queue queue = queues.bulk_queue();
  for (const FlatRange& range : ranges_of(part)) {
    if (shape.shards_gradients()) {
      add_reduced(lowered, shape, part, range, queue);
      continue;
    }
    const int32_t sum = whole_buffer(lowered.block, "gradients", Register::gradient_shard, range,
                                     shape.accumulate_dtype(), MemoryKind::gradients);
    reduce_persistent(lowered, shape, sum, reduced_gradient(lowered.block, shape, range), queue);
  }
  return lowered;
}

LoweredBlock bucket_block(const StageShape& shape, int64_t elements, const QueuePolicy& queues) {
  LoweredBlock lowered;
  lowered.block.name = "bucket.reduce";
  const int32_t sum = add_buffer(lowered.block, "gradients", Register::gradient_shard, 0,
                                 {shape.accumulate_dtype(), {elements}}, MemoryKind::gradients);
  reduce_persistent(lowered, shape, sum, sum, queues.bulk_queue());
  return lowered;
}

std::optional<Block> finish_reduction_block(const StageShape& shape, const LayerKind& kind, const QueuePolicy& queues) {
  Block block{kind.graph.name + ".finish_reduction", {}, {}};
  const auto sum = [&](const FlatRange& range, GroupKind group, TimeKind time, Queue queue) {
    const int32_t gradient = reduced_gradient(block, shape, range);
    block.instructions.push_back(collective(InstructionKind::all_reduce, gradient, gradient, group, time, queue));
  };
  for (const FlatRange& range : kind.unit.ranges) {
    if (range.partial) sum(range, GroupKind::tensor, TimeKind::tensor_comm, queues.inline_queue());
    if (range.count_rule == CountRule::first_copy) {
      sum(range, GroupKind::kv_copies, TimeKind::tensor_comm, queues.inline_queue());
    }
    if (range.shared && shape.tied_across_stages) {
      sum(range, GroupKind::embedding, TimeKind::pipeline_comm, queues.bulk_queue());
    }
  }
  if (block.instructions.empty()) return std::nullopt;
  return block;
}

Block norm_block(const StageShape& shape, const LayerKind& kind, const ArenaMap& arena) {
  Block block{kind.graph.name + ".norm", {}, {}};
  const int32_t sum = metrics_buffer(block, arena, 1, 1);
  for (const FlatRange& range : kind.unit.ranges) {
    if (range.count_rule == CountRule::nobody) continue;
    const int32_t gradient = reduced_gradient(block, shape, range);
    block.instructions.push_back(operation(OpKind::squared_norm, {gradient}, {sum}, TimeKind::optimizer));
    block.instructions.back().attributes.count_rule = range.count_rule;
  }
  return block;
}

namespace {

/// Ranges that the optimizer may treat as one: it does not care who counts them in the norm, and without ZeRO their
/// shares are neighbours.
std::vector<FlatRange> optimizer_ranges(const StageShape& shape, const Unit& unit) {
  if (shape.mesh.shard > 1) return unit.ranges;
  std::vector<FlatRange> merged;
  for (const FlatRange& range : unit.ranges) {
    if (!merged.empty() && merged.back().decay == range.decay && merged.back().end == range.begin) {
      merged.back().end = range.end;
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

}  // namespace

Block update_block(const StageShape& shape, const LayerKind& kind, const ArenaMap& arena, const QueuePolicy& queues) {
  Block block{kind.graph.name + ".update", {}, {}};
  const Precision& precision = shape.precision;
  const int32_t metrics = metrics_buffer(block, arena, 0, 4);
  const auto state = [&](const char* name, Register base, const FlatRange& range, DType dtype) {
    return shard_buffer(block, shape, name, base, range, dtype, MemoryKind::optimizer);
  };
  for (const FlatRange& range : optimizer_ranges(shape, kind.unit)) {
    const int32_t gradient = reduced_gradient(block, shape, range);
    const int32_t parameters = updated_parameters(block, shape, range);
    std::vector<int32_t> outputs{parameters, state("moment1", Register::moment1, range, precision.moment),
                                 state("moment2", Register::moment2, range, precision.moment)};
    if (precision.master_copy) outputs.push_back(state("master", Register::master, range, DType::f32));
    block.instructions.push_back(
        operation(OpKind::adamw, {gradient, metrics}, std::move(outputs), TimeKind::optimizer));
    block.instructions.back().attributes.decay = range.decay;
    if (!shape.shards_state() || shape.shards_parameters()) continue;
    const int32_t all = whole_buffer(block, "parameters", Register::parameter_shard, range, precision.parameter,
                                     MemoryKind::parameters);
    block.instructions.push_back(collective(InstructionKind::all_gather, parameters, all, GroupKind::shard,
                                            TimeKind::data_comm, queues.bulk_queue()));
  }
  return block;
}

}  // namespace foresail
