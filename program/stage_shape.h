// Everything about one pipeline stage that compilation decides before any block is laid out: its chunks of layers, its
// sharded graphs, where its parameters live and how the persistent part of the arena is cut.
#pragma once

#include <array>
#include <set>
#include <string>
#include <vector>

#include "models/model_spec.h"
#include "program/block_layout.h"
#include "program/compile.h"
#include "program/shard.h"
#include "program/units.h"

namespace foresail {

/// The ranks that hold the same weights: how they share them and what belongs to them. There is one for experts and one
/// for everything else. In every parameter-shaped segment experts come last.
struct Sharing {
  GroupKind shard_group = GroupKind::shard, replica_group = GroupKind::replica;
  int32_t shard = 1, replicas = 1;  ///< ranks of these groups
  int32_t zero_stage = 0;           ///< 0 where there is nothing to share
  int64_t elements = 0;             ///< of all units of the stage
  int64_t frozen = 0;               ///< of these: the optimizer passes them over

  bool of_experts() const { return shard_group == GroupKind::expert_shard; }
  int32_t ranks() const { return shard * replicas; }
  bool shards_parameters() const { return zero_stage == 3; }
  bool shards_gradients() const { return zero_stage >= 2; }
  bool shards_state() const { return zero_stage >= 1; }
  /// Of `count` elements those that a rank holds in a segment that is cut from `zero` on (3 parameters, 2 gradients, 1 the
  /// optimizer's state).
  int64_t held(int64_t count, int32_t zero) const { return zero_stage >= zero ? count / shard : count; }
};

/// A kind of layer on this stage.
struct LayerKind {
  Graph graph;                  ///< sharded and (if the target says so) fused, forward only
  Unit unit;                    ///< all weights but those of experts
  Unit experts;                 ///< empty if there are none
  std::set<int> second_holder;  ///< weights that the first virtual stage holds too
};

/// Layers between embedding and head are of one of these kinds.
enum class BlockKind : uint8_t { dense, expert };
inline constexpr size_t kBlockKinds = 2;

/// One virtual stage of this rank.
struct ChunkShape {
  int64_t virtual_stage = 0;
  StageLayers layers;
  bool first = false, last = false;  ///< holds the embedding, the head
  int32_t previous_stage = 0, next_stage = 0;
  bool from_self = false, to_self = false;  ///< the neighbour is a chunk of this rank
  std::vector<int64_t> layer_offsets;       ///< by layer of the chunk: elements in parameter-shaped segments
  std::vector<int64_t> expert_offsets;      ///< the same of its experts, from the first experts on
};

struct StageShape {
  Strategy strategy;
  Cut cut;
  Mesh mesh;
  Sharing sharing, expert_sharing;
  Precision precision;
  int64_t alignment = 64;
  std::vector<ChunkShape> chunks;
  bool first = false, last = false;  ///< one of the chunks holds the embedding, the head
  bool reads_targets = false;        ///< the head does, and routers with a loss of their own
  bool tied_across_stages = false;   ///< this stage holds one of two copies of the tied embedding
  bool tied_here = false;            ///< the head reads the embedding's table on this stage
  int64_t micro_batches = 1, global_batch = 0;
  int64_t most_micro_batches = 1;  ///< of any Program of the set: the data have room for them
  int64_t rows = 0;                ///< of a micro-batch on this rank
  int64_t hidden_rows = 0;         ///< of its hidden states between layers: fewer with sequence parallelism
  int64_t sequence_length = 0, hidden = 0;
  LayerKind embedding, head;
  std::array<LayerKind, kBlockKinds> blocks;      ///< by BlockKind; one that no layer has is empty
  std::vector<BlockKind> kinds;                   ///< by global layer number
  int64_t embedding_offset = 0, head_offset = 0;  ///< elements in parameter-shaped segments

  int64_t hidden_bytes() const;  ///< of one micro-batch's hidden states, aligned
  const LayerKind& block_of(int64_t layer) const {
    return blocks[static_cast<size_t>(kinds.at(static_cast<size_t>(layer)))];
  }
  /// Of this stage's layers, in order, each once.
  std::vector<const LayerKind*> kinds_of_blocks() const;
  /// Of the persistent gradients: what micro-batches are summed in.
  DType accumulate_dtype() const { return strategy.accumulate_dtype.value_or(precision.gradient); }
  /// Of gradients while ranks sum them.
  DType reduce_dtype() const { return strategy.reduce_dtype.value_or(accumulate_dtype()); }
  /// Kernels add to a micro-batch's own gradients, which are then added to those that persist: a shard, or in another
  /// element type than the kernels'.
  bool transient_gradients(const Sharing& of) const {
    return of.shards_gradients() || accumulate_dtype() != precision.gradient;
  }
  /// Gradients are reduced as they become whole, not all behind backward. (ZeRO-2 and 3 reduce in every micro-batch.)
  bool reduces_in_backward(const Sharing& of) const {
    return strategy.overlap && strategy.bucket_bytes > 0 && of.ranks() > 1 && !of.shards_gradients();
  }
  /// Elements that a rank holds in a segment that is cut from ZeRO stage `zero` on; of them those before the experts.
  int64_t held(int32_t zero) const { return dense_held(zero) + expert_sharing.held(expert_sharing.elements, zero); }
  int64_t dense_held(int32_t zero) const { return sharing.held(sharing.elements, zero); }
  bool reads_data() const { return first || reads_targets; }
};

struct ShapeRequest {
  int64_t sequence_length = 0, global_batch = 0;
  Precision precision;
  bool dropout = true;
  int64_t largest_batch = 0;             ///< of any Program of the set; 0: this one
  std::vector<std::string> frozen = {};  ///< Job::frozen
  bool most_expert_rows = false;         ///< room for whatever routers do, in place of Strategy::moe_bound
};

/// The table that attention of every kind of block reads, null if there is none.
const GraphTensor* constant_table(const StageShape& shape);

StageShape shape_stage(const ModelSpec& model, const ShapeRequest& request, const Strategy& strategy,
                       const Target& target, int stage);

enum class PersistentState : uint8_t { training, parameters_only };

/// The persistent segments, equal in all Programs of a set. Slots and scratch are still empty.
ArenaMap persistent_arena(const StageShape& shape, PersistentState state);

/// Bytes between the data of one micro-batch and the next; targets begin at half of it.
int64_t data_stride(const StageShape& shape);

/// Places of everything in a layer's graph that lives outside slots and scratch: weights, their gradients, token ids,
/// constants, the loss.
std::map<int, Place> persistent_places(const Graph& graph, const LayerKind& kind, const StageShape& shape,
                                       const ArenaMap& arena);

/// Parameter-shaped registers for a unit at `unit_offset` (elements of the whole stage). `parameter` stays 0 where it is
/// gathered, `gradient` where it is transient: they are placed per call.
RegisterFile parameter_registers(const StageShape& shape, const ArenaMap& arena, int64_t unit_offset);
/// The same for experts, of which `unit_offset` counts the elements: `expert_parameter` and `expert_gradient` in place of
/// `parameter` and `gradient`.
RegisterFile expert_registers(const StageShape& shape, const ArenaMap& arena, int64_t unit_offset);

}  // namespace foresail
