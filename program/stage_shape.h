// Everything about one pipeline stage that compilation decides before any block is laid out: its chunks of layers, its
// sharded graphs, where its parameters live and how the persistent part of the arena is cut.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "models/model_spec.h"
#include "program/block_layout.h"
#include "program/compile.h"
#include "program/shard.h"
#include "program/units.h"

namespace foresail {

/// A kind of layer on this stage.
struct LayerKind {
  Graph graph;  ///< sharded and (if the target says so) fused, forward only
  Unit unit;
  std::set<int> second_holder;  ///< weights that the first virtual stage holds too
};

/// One virtual stage of this rank.
struct ChunkShape {
  int64_t virtual_stage = 0;
  StageLayers layers;
  bool first = false, last = false;  ///< holds the embedding, the head
  int32_t previous_stage = 0, next_stage = 0;
  bool from_self = false, to_self = false;  ///< the neighbour is a chunk of this rank
  int64_t layers_offset = 0;                ///< elements in parameter-shaped segments
};

struct StageShape {
  Strategy strategy;
  Cut cut;
  Mesh mesh;
  int32_t zero_stage = 0;  ///< 0 where there is nothing to share
  Precision precision;
  int64_t alignment = 64;
  std::vector<ChunkShape> chunks;
  bool first = false, last = false;  ///< one of the chunks holds the embedding, the head
  bool tied_across_stages = false;   ///< this stage holds one of two copies of the tied embedding
  bool tied_here = false;            ///< the head reads the embedding's table on this stage
  int64_t micro_batches = 1, global_batch = 0;
  int64_t most_micro_batches = 1;  ///< of any Program of the set: the data have room for them
  int64_t rows = 0;                ///< of a micro-batch on this rank
  int64_t hidden_rows = 0;         ///< of its hidden states between layers: fewer with sequence parallelism
  int64_t sequence_length = 0, hidden = 0;
  LayerKind embedding, block, head;
  int64_t embedding_offset = 0, head_offset = 0;  ///< elements in parameter-shaped segments
  int64_t parameter_elements = 0, frozen_elements = 0;

  int64_t hidden_bytes() const;  ///< of one micro-batch's hidden states, aligned
  int64_t layer_offset(size_t chunk, int64_t index) const {
    return chunks[chunk].layers_offset + index * block.unit.elements;
  }
  bool shards_parameters() const { return zero_stage == 3; }
  bool shards_gradients() const { return zero_stage >= 2; }
  bool shards_state() const { return zero_stage >= 1; }
  /// Of the persistent gradients: what micro-batches are summed in.
  DType accumulate_dtype() const { return strategy.accumulate_dtype.value_or(precision.gradient); }
  /// Of gradients while ranks sum them.
  DType reduce_dtype() const { return strategy.reduce_dtype.value_or(accumulate_dtype()); }
  /// Kernels add to a micro-batch's own gradients, which are then added to those that persist: a shard, or in another
  /// element type than the kernels'.
  bool transient_gradients() const { return shards_gradients() || accumulate_dtype() != precision.gradient; }
  /// Gradients are reduced as they become whole, not all behind backward. (ZeRO-2 and 3 reduce in every micro-batch.)
  bool reduces_in_backward() const {
    return strategy.overlap && strategy.bucket_bytes > 0 && mesh.data_ranks() > 1 && !shards_gradients();
  }
};

struct ShapeRequest {
  int64_t sequence_length = 0, global_batch = 0;
  Precision precision;
  bool dropout = true;
  int64_t largest_batch = 0;             ///< of any Program of the set; 0: this one
  std::vector<std::string> frozen = {};  ///< Job::frozen
};

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

}  // namespace foresail
