// The blocks that treat a unit's weights as flat ranges: gathering and reducing them over the ranks that share them, norm
// and optimizer.
#pragma once

#include <optional>

#include "program/lower.h"
#include "program/stage_shape.h"

namespace foresail {

/// The ranges of a unit that lie in [begin, end) (elements within the unit).
struct UnitPart {
  const LayerKind* kind = nullptr;
  int64_t begin = 0, end = 0;
  bool tied = false;        ///< reached through the `tied_` registers: the embedding's table, used by the head
  bool of_experts = false;  ///< of the unit of experts

  const Unit& unit() const { return of_experts ? kind->experts : kind->unit; }
  std::string name() const { return kind->graph.name + (of_experts ? ".experts" : ""); }
  int64_t elements() const { return end - begin; }
  Register parameter() const {
    return of_experts ? Register::expert_parameter : tied ? Register::tied_parameter : Register::parameter;
  }
  Register gradient() const {
    return of_experts ? Register::expert_gradient : tied ? Register::tied_gradient : Register::gradient;
  }
};

const Sharing& sharing_of(const StageShape& shape, const UnitPart& part);

/// parameter_registers or expert_registers.
RegisterFile unit_registers(const StageShape& shape, const ArenaMap& arena, const UnitPart& part, int64_t offset);

UnitPart whole(const LayerKind& kind);
/// A layer's experts; nothing where it has none.
UnitPart experts(const LayerKind& kind);
/// Weights of matrix products, whose gradients a split backward delays, and the others.
UnitPart products(const LayerKind& kind);
UnitPart others(const LayerKind& kind);

/// ZeRO-3: this shard's parameters -> everybody's.
Block gather_block(const StageShape& shape, const UnitPart& part, const QueuePolicy& queues);

/// Zeroes transient gradients.
Block zero_block(const StageShape& shape, const UnitPart& part);

/// ZeRO-0 and 1, another accumulation type: adds transient gradients to what earlier micro-batches left.
Block accumulate_block(const StageShape& shape, const UnitPart& part);

/// Sums a unit's gradients over the data ranks; with ZeRO this rank keeps its shard, which ZeRO-2 and 3 add to what
/// earlier micro-batches left. Temporaries of a reduction in another element type lie at the begin of scratch:
/// `scratch_bytes` of the result.
LoweredBlock reduce_block(const StageShape& shape, const UnitPart& part, const QueuePolicy& queues);

/// Without ZeRO: sums `elements` persistent gradients of neighbouring units over the data ranks.
LoweredBlock bucket_block(const StageShape& shape, const Sharing& sharing, int64_t elements, const QueuePolicy& queues);

/// After the reduction over data ranks: sums over tp what only each rank's heads or rows contributed, over the copies of
/// KV heads, over both holders of a tied table. Nothing if the unit has none of these.
std::optional<Block> finish_reduction_block(const StageShape& shape, const UnitPart& part, const QueuePolicy& queues);

/// Adds a unit's squared gradients to the metrics record.
Block norm_block(const StageShape& shape, const UnitPart& part, const ArenaMap& arena);

/// AdamW over a unit's flat ranges, then (ZeRO-1 and 2) everybody's updated share.
Block update_block(const StageShape& shape, const UnitPart& part, const ArenaMap& arena, const QueuePolicy& queues);

}  // namespace foresail
