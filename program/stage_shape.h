// Everything about one pipeline stage that compilation decides before any block is laid out: its layers, its sharded
// graphs, where its parameters live and how the persistent part of the arena is cut.
#pragma once

#include <set>
#include <string>

#include "models/model_spec.h"
#include "program/block_layout.h"
#include "program/compile.h"
#include "program/units.h"

namespace foresail {

/// A kind of layer on this stage.
struct LayerKind {
  Graph graph;  ///< sharded and (if the target says so) fused, forward only
  Unit unit;
  std::set<int> second_holder;  ///< weights that the first stage holds too
};

struct StageShape {
  Strategy strategy;
  Precision precision;
  int64_t alignment = 64;
  StageLayers layers;
  bool first = false, last = false;
  bool tied_across_stages = false;  ///< this stage holds one of two copies of the tied embedding
  int64_t micro_batches = 1, rows = 0, sequence_length = 0, hidden = 0;
  LayerKind embedding, block, head;
  int64_t embedding_offset = 0, layers_offset = 0, head_offset = 0;  ///< elements in parameter-shaped segments
  int64_t parameter_elements = 0;
  int64_t tied_offset = -1;  ///< element offset of the embedding that a tied head on the same stage reads

  int64_t hidden_bytes() const;  ///< of one micro-batch's hidden states, aligned
  int64_t layer_offset(int64_t index_on_stage) const { return layers_offset + index_on_stage * block.unit.elements; }
};

struct ShapeRequest {
  int64_t sequence_length = 0, global_batch = 0;
  Precision precision;
  bool dropout = true;
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
std::map<int, Place> persistent_places(const Graph& graph, const Unit& unit, const StageShape& shape,
                                       const ArenaMap& arena);

/// Parameter-shaped registers for a unit at `unit_offset` (elements).
RegisterFile parameter_registers(const StageShape& shape, const ArenaMap& arena, int64_t unit_offset);

}  // namespace foresail
