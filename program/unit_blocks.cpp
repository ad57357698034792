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
  for (const FlatRange& range : part.unit().ranges) {
    if (range.begin >= part.begin && range.end <= part.end) ranges.push_back(range);
  }
  return ranges;
}

/// Those whose gradients are used.
std::vector<FlatRange> trained_ranges_of(const UnitPart& part) {
  std::vector<FlatRange> ranges = ranges_of(part);
  std::erase_if(ranges, [](const FlatRange& range) { return range.frozen; });
  return ranges;
}

/// A range, whole, behind a register whose segment (or transient buffer) holds whole units.
int32_t whole_buffer(Block& block, const char* name, Register base, const FlatRange& range, DType dtype,
                     MemoryKind memory) {
  return add_buffer(block, name, base, range.begin * size_of(dtype), {dtype, {range.end - range.begin}}, memory);
}

/// A share of what lies at `offset`, one after the other.
int32_t add_share(Block& block, const Sharing& sharing, const char* name, Register base, int64_t offset,
                  TensorType type, MemoryKind memory) {
  const int64_t stride = type.bytes();
  const int32_t buffer = add_buffer(block, name, base, offset, std::move(type), memory, stride);
  if (sharing.of_experts()) block.buffers.back().share_of = ShareOf::expert;
  return buffer;
}

/// This shard rank's share of a range inside the whole one.
int32_t own_part_buffer(Block& block, const Sharing& sharing, const char* name, Register base, const FlatRange& range,
                        DType dtype, MemoryKind memory) {
  const int64_t share = (range.end - range.begin) / sharing.shard;
  return add_share(block, sharing, name, base, range.begin * size_of(dtype), {dtype, {share}}, memory);
}

/// This shard rank's share of a range in a segment that holds nothing else.
int32_t shard_buffer(Block& block, const Sharing& sharing, const char* name, Register base, const FlatRange& range,
                     DType dtype, MemoryKind memory) {
  const int64_t shard = sharing.shard;
  return add_buffer(block, name, base, range.begin / shard * size_of(dtype),
                    {dtype, {(range.end - range.begin) / shard}}, memory);
}

/// What norm and optimizer see of a range's reduced gradient.
int32_t reduced_gradient(Block& block, const StageShape& shape, const Sharing& sharing, const FlatRange& range) {
  const DType dtype = shape.accumulate_dtype();
  const auto make = sharing.shards_gradients() ? shard_buffer : own_part_buffer;
  return make(block, sharing, "gradients", Register::gradient_shard, range, dtype, MemoryKind::gradients);
}

int32_t updated_parameters(Block& block, const StageShape& shape, const Sharing& sharing, const FlatRange& range) {
  const DType dtype = shape.precision.parameter;
  const auto make = sharing.shards_parameters() ? shard_buffer : own_part_buffer;
  return make(block, sharing, "parameters", Register::parameter_shard, range, dtype, MemoryKind::parameters);
}

/// An operator of the optimizer or of a reduction on the queue that owns its data.
Instruction bulk_operation(OpKind kind, std::vector<int32_t> inputs, std::vector<int32_t> outputs, Queue queue) {
  Instruction instruction = operation(kind, std::move(inputs), std::move(outputs), TimeKind::data_comm);
  instruction.queue = queue;
  return instruction;
}

/// Reduces `sum` (a whole range or bucket) over the ranks that hold it; `part` is what this rank keeps of it.
void reduce(Block& block, const Sharing& sharing, int32_t sum, int32_t part, Queue queue) {
  using enum InstructionKind;
  auto& out = block.instructions;
  if (sharing.shard > 1) {
    out.push_back(collective(reduce_scatter, sum, part, sharing.shard_group, TimeKind::data_comm, queue));
  }
  if (sharing.replicas > 1) {
    out.push_back(collective(all_reduce, part, part, sharing.replica_group, TimeKind::data_comm, queue));
  }
}

/// Where a reduction in another element type happens: a copy of the whole range at the begin of scratch.
struct Staging {
  int32_t sum, part;
};
Staging stage(LoweredBlock& lowered, const StageShape& shape, const Sharing& sharing, int32_t gradients,
              int64_t elements, Queue queue) {
  const DType dtype = shape.reduce_dtype();
  Block& block = lowered.block;
  const int32_t sum = add_buffer(block, "staged", Register::scratch, 0, {dtype, {elements}}, MemoryKind::scratch);
  const TensorType share{dtype, {elements / sharing.shard}};
  const int32_t part =
      sharing.shard == 1 ? sum : add_share(block, sharing, "staged", Register::scratch, 0, share, MemoryKind::scratch);
  block.instructions.push_back(bulk_operation(OpKind::cast, {gradients}, {sum}, queue));
  lowered.scratch_bytes = std::max(lowered.scratch_bytes, round_up(elements * size_of(dtype), shape.alignment));
  return {sum, part};
}

}  // namespace

const Sharing& sharing_of(const StageShape& shape, const UnitPart& part) {
  return part.of_experts ? shape.expert_sharing : shape.sharing;
}

RegisterFile unit_registers(const StageShape& shape, const ArenaMap& arena, const UnitPart& part, int64_t offset) {
  return part.of_experts ? expert_registers(shape, arena, offset) : parameter_registers(shape, arena, offset);
}

UnitPart whole(const LayerKind& kind) { return {&kind, 0, kind.unit.elements}; }
UnitPart experts(const LayerKind& kind) {
  UnitPart part{&kind, 0, kind.experts.elements};
  part.of_experts = true;
  return part;
}
UnitPart products(const LayerKind& kind) { return {&kind, kind.unit.products_begin, kind.unit.elements}; }
UnitPart others(const LayerKind& kind) { return {&kind, 0, kind.unit.products_begin}; }

Block gather_block(const StageShape& shape, const UnitPart& part, const QueuePolicy& queues) {
  Block block{part.name() + ".gather", {}, {}};
  const DType dtype = shape.precision.parameter;
  const Sharing& sharing = sharing_of(shape, part);
  for (const FlatRange& range : ranges_of(part)) {
    const int32_t own =
        shard_buffer(block, sharing, "parameters", Register::parameter_shard, range, dtype, MemoryKind::parameters);
    const int32_t all = whole_buffer(block, "gathered", part.parameter(), range, dtype, MemoryKind::scratch);
    block.instructions.push_back(collective(InstructionKind::all_gather, own, all, sharing.shard_group,
                                            TimeKind::data_comm, queues.bulk_queue()));
  }
  return block;
}

Block zero_block(const StageShape& shape, const UnitPart& part) {
  Block block{part.name() + ".zero", {}, {}};
  const DType dtype = shape.precision.gradient;
  for (const FlatRange& range : ranges_of(part)) {  // one by one, as they are reduced
    const int32_t gradients =
        whole_buffer(block, "transient gradients", part.gradient(), range, dtype, MemoryKind::scratch);
    block.instructions.push_back(operation(OpKind::fill_zero, {}, {gradients}, TimeKind::compute));
  }
  return block;
}

Block accumulate_block(const StageShape& shape, const UnitPart& part) {
  Block block{part.name() + ".accumulate", {}, {}};
  for (const FlatRange& range : trained_ranges_of(part)) {
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
  const Sharing& sharing = sharing_of(shape, part);
  const DType dtype = shape.precision.gradient;
  const int32_t sum = whole_buffer(block, "gradients", part.gradient(), range, dtype, MemoryKind::scratch);
  int32_t own = -1;
  if (shape.reduce_dtype() == dtype) {
    own = own_part_buffer(block, sharing, "own gradients", part.gradient(), range, dtype, MemoryKind::scratch);
    reduce(block, sharing, sum, own, queue);
  } else {
    const Staging staging = stage(lowered, shape, sharing, sum, range.end - range.begin, queue);
    reduce(block, sharing, staging.sum, staging.part, queue);
    own = staging.part;  // added as it was summed: rounded once, to what accumulates
  }
  const int32_t kept = reduced_gradient(block, shape, sharing, range);
  block.instructions.push_back(bulk_operation(OpKind::add, {kept, own}, {kept}, queue));
}

/// Persistent gradients (`sum`, of which this rank keeps `own`) are reduced in place, or in another type and come back.
void reduce_persistent(LoweredBlock& lowered, const StageShape& shape, const Sharing& sharing, int32_t sum, int32_t own,
                       Queue queue) {
  Block& block = lowered.block;
  if (shape.reduce_dtype() == shape.accumulate_dtype()) return reduce(block, sharing, sum, own, queue);
  const int64_t elements = block.buffers[static_cast<size_t>(sum)].type.elements();
  const Staging staging = stage(lowered, shape, sharing, sum, elements, queue);
  reduce(block, sharing, staging.sum, staging.part, queue);
  block.instructions.push_back(bulk_operation(OpKind::cast, {staging.part}, {own}, queue));
}

}  // namespace

LoweredBlock reduce_block(const StageShape& shape, const UnitPart& part, const QueuePolicy& queues) {
  LoweredBlock lowered;
  lowered.block.name = part.name() + ".reduce";
  const Queue queue = queues.bulk_queue();
  const Sharing& sharing = sharing_of(shape, part);
  for (const FlatRange& range : trained_ranges_of(part)) {
    if (sharing.shards_gradients()) {
      add_reduced(lowered, shape, part, range, queue);
      continue;
    }
    const int32_t sum = whole_buffer(lowered.block, "gradients", Register::gradient_shard, range,
                                     shape.accumulate_dtype(), MemoryKind::gradients);
    reduce_persistent(lowered, shape, sharing, sum, reduced_gradient(lowered.block, shape, sharing, range), queue);
  }
  return lowered;
}

LoweredBlock bucket_block(const StageShape& shape, const Sharing& sharing, int64_t elements,
                          const QueuePolicy& queues) {
  LoweredBlock lowered;
  lowered.block.name = sharing.of_experts() ? "expert_bucket.reduce" : "bucket.reduce";
  const int32_t sum = add_buffer(lowered.block, "gradients", Register::gradient_shard, 0,
                                 {shape.accumulate_dtype(), {elements}}, MemoryKind::gradients);
  reduce_persistent(lowered, shape, sharing, sum, sum, queues.bulk_queue());
  return lowered;
}

std::optional<Block> finish_reduction_block(const StageShape& shape, const UnitPart& part, const QueuePolicy& queues) {
  Block block{part.name() + ".finish_reduction", {}, {}};
  const Sharing& sharing = sharing_of(shape, part);
  const auto sum = [&](const FlatRange& range, GroupKind group, TimeKind time, Queue queue) {
    const int32_t gradient = reduced_gradient(block, shape, sharing, range);
    block.instructions.push_back(collective(InstructionKind::all_reduce, gradient, gradient, group, time, queue));
  };
  for (const FlatRange& range : trained_ranges_of(part)) {
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

Block norm_block(const StageShape& shape, const UnitPart& part, const ArenaMap& arena) {
  Block block{part.name() + ".norm", {}, {}};
  const int32_t sum = metric_buffer(block, arena, StepMetric::squared_norm);
  for (const FlatRange& range : trained_ranges_of(part)) {
    if (range.count_rule == CountRule::nobody) continue;
    const int32_t gradient = reduced_gradient(block, shape, sharing_of(shape, part), range);
    block.instructions.push_back(operation(OpKind::squared_norm, {gradient}, {sum}, TimeKind::optimizer));
    block.instructions.back().attributes.count_rule = range.count_rule;
  }
  return block;
}

namespace {

/// Ranges that the optimizer may treat as one: it does not care who counts them in the norm, and without ZeRO their
/// shares are neighbours.
std::vector<FlatRange> optimizer_ranges(const Sharing& sharing, const UnitPart& part) {
  if (sharing.shard > 1) return trained_ranges_of(part);
  std::vector<FlatRange> merged;
  for (const FlatRange& range : trained_ranges_of(part)) {
    if (!merged.empty() && merged.back().decay == range.decay && merged.back().end == range.begin) {
      merged.back().end = range.end;
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

}  // namespace

Block update_block(const StageShape& shape, const UnitPart& part, const ArenaMap& arena, const QueuePolicy& queues) {
  Block block{part.name() + ".update", {}, {}};
  const Precision& precision = shape.precision;
  const Sharing& sharing = sharing_of(shape, part);
  const int32_t metrics = metrics_record(block, arena);
  const auto state = [&](const char* name, Register base, const FlatRange& range, DType dtype) {
    return shard_buffer(block, sharing, name, base, range, dtype, MemoryKind::optimizer);
  };
  for (const FlatRange& range : optimizer_ranges(sharing, part)) {
    const int32_t gradient = reduced_gradient(block, shape, sharing, range);
    const int32_t parameters = updated_parameters(block, shape, sharing, range);
    std::vector<int32_t> outputs{parameters, state("moment1", Register::moment1, range, precision.moment),
                                 state("moment2", Register::moment2, range, precision.moment)};
    if (precision.master_copy) outputs.push_back(state("master", Register::master, range, DType::f32));
    block.instructions.push_back(
        operation(OpKind::adamw, {gradient, metrics}, std::move(outputs), TimeKind::optimizer));
    block.instructions.back().attributes.decay = range.decay;
    if (!sharing.shards_state() || sharing.shards_parameters()) continue;
    const int32_t all = whole_buffer(block, "parameters", Register::parameter_shard, range, precision.parameter,
                                     MemoryKind::parameters);
    block.instructions.push_back(collective(InstructionKind::all_gather, parameters, all, sharing.shard_group,
                                            TimeKind::data_comm, queues.bulk_queue()));
  }
  return block;
}

}  // namespace foresail
