#include "program/stage_shape.h"

#include <algorithm>

#include "core/error.h"
#include "core/round_up.h"
#include "ops/metrics_record.h"
#include "ops/step_inputs.h"
#include "program/autodiff.h"
#include "program/expert_cut.h"
#include "program/frozen.h"
#include "program/fuse.h"
#include "program/schedule.h"

namespace foresail {
namespace {

int weight_named(const Graph& graph, const std::string& name) {
  for (size_t w = 0; w < graph.weights.size(); ++w) {
    if (graph.weights[w].name == name) return static_cast<int>(w);
  }
  ensure(false, "a tied weight names a weight of the embedding");
  return -1;
}

ModelSpec without_dropout(ModelSpec model) {
  model.attention_dropout = model.residual_dropout = model.embedding_dropout = 0;
  return model;
}

std::set<int> tied_weights(const Graph& head) {
  std::set<int> tied;
  for (size_t w = 0; w < head.weights.size(); ++w) {
    if (!head.weights[w].tied_to.empty()) tied.insert(static_cast<int>(w));
  }
  return tied;
}

/// The weights of the embedding that a tied head shares.
std::set<int> shared_weights(const Graph& embedding, const Graph& head) {
  std::set<int> shared;
  for (const int w : tied_weights(head)) {
    shared.insert(weight_named(embedding, head.weights[static_cast<size_t>(w)].tied_to));
  }
  return shared;
}

void place_kind(const StageShape& shape, LayerKind& kind, const std::set<int>& held_elsewhere,
                const std::set<int>& shared) {
  const Differentiated differentiated = differentiate(kind.graph);
  Placement placement{.cut = shape.cut,
                      .shard_ranks = shape.mesh.shard,
                      .held_elsewhere = held_elsewhere,
                      .second_holder = kind.second_holder,
                      .shared = shared,
                      .partial = differentiated.partial_weight_gradients};
  kind.unit = place_weights(kind.graph, placement);
  placement.of_experts = true;
  placement.shard_ranks = shape.mesh.expert_shard;
  kind.experts = place_weights(kind.graph, placement);
}

int64_t frozen_elements(const Unit& unit) {
  int64_t elements = 0;
  for (const FlatRange& range : unit.ranges) elements += range.frozen ? range.end - range.begin : 0;
  return elements;
}

void place_units(StageShape& shape) {
  const std::set<int> tied = tied_weights(shape.head.graph);
  shape.tied_here = shape.first && shape.last && !tied.empty();
  shape.tied_across_stages = !tied.empty() && !shape.tied_here && (shape.first || shape.last);
  if (!shape.tied_here) shape.head.second_holder = tied;
  place_kind(shape, shape.embedding, {}, shared_weights(shape.embedding.graph, shape.head.graph));
  for (LayerKind& block : shape.blocks) {
    if (!block.graph.nodes.empty()) place_kind(shape, block, {}, {});
  }
  place_kind(shape, shape.head, shape.tied_here ? tied : std::set<int>{}, tied);
  int64_t offset = shape.first ? shape.embedding.unit.elements : 0, expert_offset = 0;
  for (ChunkShape& chunk : shape.chunks) {
    for (int64_t i = 0; i < chunk.layers.count; ++i) {
      const LayerKind& block = shape.block_of(chunk.layers.first + i);
      chunk.layer_offsets.push_back(offset);
      chunk.expert_offsets.push_back(expert_offset);
      offset += block.unit.elements;
      expert_offset += block.experts.elements;
      shape.sharing.frozen += frozen_elements(block.unit);
      shape.expert_sharing.frozen += frozen_elements(block.experts);
    }
  }
  shape.head_offset = offset;
  if (shape.first) shape.sharing.frozen += frozen_elements(shape.embedding.unit);
  if (shape.last) shape.sharing.frozen += frozen_elements(shape.head.unit);
  shape.sharing.elements = offset + (shape.last ? shape.head.unit.elements : 0);
  shape.expert_sharing.elements = expert_offset;
}

/// How the ranks of one mesh share what they hold the same copies of.
Sharing sharing_of(const Strategy& strategy, int32_t ranks, int32_t shard, GroupKind shard_group,
                   GroupKind replica_group) {
  Sharing sharing;
  sharing.shard_group = shard_group;
  sharing.replica_group = replica_group;
  sharing.shard = shard;
  sharing.replicas = ranks / shard;
  sharing.zero_stage = shard > 1 ? static_cast<int32_t>(strategy.zero_stage) : 0;
  return sharing;
}

void place_chunks(StageShape& shape, const ModelSpec& model, int stage) {
  const Strategy& strategy = shape.strategy;
  const std::vector<StageLayers> layers = stage_layers(model.layers, strategy);
  const int64_t count = virtual_stage_count(strategy);
  for (int32_t c = 0; c < strategy.virtual_stages; ++c) {
    ChunkShape chunk;
    chunk.virtual_stage = virtual_stage_of(strategy, {stage, c});
    chunk.layers = layers.at(static_cast<size_t>(chunk.virtual_stage));
    chunk.first = chunk.virtual_stage == 0;
    chunk.last = chunk.virtual_stage == count - 1;
    if (!chunk.first) chunk.previous_stage = place_of(strategy, chunk.virtual_stage - 1).stage;
    if (!chunk.last) chunk.next_stage = place_of(strategy, chunk.virtual_stage + 1).stage;
    chunk.from_self = !chunk.first && chunk.previous_stage == stage;
    chunk.to_self = !chunk.last && chunk.next_stage == stage;
    shape.first |= chunk.first;
    shape.last |= chunk.last;
    shape.chunks.push_back(chunk);
  }
}

/// Sets the registers through which a unit's weights are reached in every segment. `place(zero)` says how many elements lie
/// before it in segments that are cut from ZeRO stage `zero` on.
template <typename PlaceOf>
RegisterFile unit_registers(const StageShape& shape, const ArenaMap& arena, const Sharing& sharing, Register parameter,
                            Register gradient, const PlaceOf& place) {
  RegisterFile registers{};
  const auto set = [&](Register base, const Segment& segment, DType dtype, int32_t zero) {
    registers[static_cast<size_t>(base)] = segment.offset + place(zero) * size_of(dtype);
  };
  const Precision& precision = shape.precision;
  if (!sharing.shards_parameters()) set(parameter, arena.parameters, precision.parameter, 3);
  if (!shape.transient_gradients(sharing)) set(gradient, arena.gradients, precision.gradient, 2);
  set(Register::parameter_shard, arena.parameters, precision.parameter, 3);
  set(Register::gradient_shard, arena.gradients, shape.accumulate_dtype(), 2);
  set(Register::master, arena.master, DType::f32, 1);
  set(Register::moment1, arena.moment1, precision.moment, 1);
  set(Register::moment2, arena.moment2, precision.moment, 1);
  return registers;
}

}  // namespace

int64_t StageShape::hidden_bytes() const {
  return round_up(hidden_rows * hidden * size_of(precision.activation), alignment);
}

std::vector<const LayerKind*> StageShape::kinds_of_blocks() const {
  std::vector<const LayerKind*> found;
  for (const ChunkShape& chunk : chunks) {
    for (int64_t i = 0; i < chunk.layers.count; ++i) {
      const LayerKind* block = &block_of(chunk.layers.first + i);
      if (std::find(found.begin(), found.end(), block) == found.end()) found.push_back(block);
    }
  }
  return found;
}

const GraphTensor* constant_table(const StageShape& shape) {
  for (const LayerKind* block : shape.kinds_of_blocks()) {
    const int constant = block->graph.find(TensorRole::constant);
    if (constant >= 0) return &block->graph.tensors[static_cast<size_t>(constant)];
  }
  return nullptr;
}

StageShape shape_stage(const ModelSpec& model, const ShapeRequest& request, const Strategy& strategy,
                       const Target& target, int stage) {
  StageShape shape;
  shape.strategy = strategy;
  shape.mesh = mesh_of(model, strategy);
  shape.cut = {strategy.tp,      strategy.cp,          strategy.sequence_parallel && strategy.tp > 1,
               strategy.context, shape.mesh.kv_copies, shape.mesh.ep,
               shape.mesh.etp};
  const Mesh& mesh = shape.mesh;
  shape.sharing = sharing_of(strategy, mesh.data_ranks(), mesh.shard, GroupKind::shard, GroupKind::replica);
  shape.expert_sharing =
      sharing_of(strategy, mesh.edp(), mesh.expert_shard, GroupKind::expert_shard, GroupKind::expert_replica);
  shape.precision = request.precision;
  shape.alignment = target.alignment;
  place_chunks(shape, model, stage);
  const int64_t per_round = strategy.dp * strategy.micro_batch;
  shape.global_batch = request.global_batch;
  shape.micro_batches = divide_up(request.global_batch, per_round);
  shape.most_micro_batches = divide_up(std::max(request.global_batch, request.largest_batch), per_round);
  shape.sequence_length = request.sequence_length;
  shape.rows = strategy.micro_batch * request.sequence_length / strategy.cp;
  shape.hidden_rows = shape.cut.sequence_parallel ? shape.rows / strategy.tp : shape.rows;
  shape.hidden = model.hidden;
  GraphOptions options{strategy.micro_batch, request.sequence_length, shape.precision, target.unfused_attention};
  options.context_parallel = strategy.cp;
  options.kv_copies = shape.mesh.kv_copies;
  ModelGraphs graphs = build_graphs(request.dropout ? model : without_dropout(model), options);
  mark_frozen(graphs, model, request.frozen);
  const double bound = request.most_expert_rows ? 0 : strategy.moe_bound;
  const auto prepare = [&](const Graph& graph) {
    if (graph.nodes.empty()) return graph;
    Graph sharded = shard(graph, shape.cut);
    cut_experts(sharded, shape.cut, bound);
    if (target.fused_kernels) fuse_forward(sharded);
    return sharded;
  };
  shape.embedding.graph = prepare(graphs.embedding);
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    shape.kinds.push_back(is_expert_layer(model, layer) ? BlockKind::expert : BlockKind::dense);
  }
  shape.blocks[static_cast<size_t>(BlockKind::dense)].graph = prepare(graphs.block);
  shape.blocks[static_cast<size_t>(BlockKind::expert)].graph = prepare(graphs.expert_block);
  shape.head.graph = prepare(graphs.head);
  shape.reads_targets = shape.last;
  for (const LayerKind* block : shape.kinds_of_blocks()) {
    shape.reads_targets |= block->graph.find(TensorRole::targets) >= 0;
  }
  place_units(shape);
  return shape;
}

int64_t data_stride(const StageShape& shape) { return 2 * round_up(shape.rows * size_of(DType::i32), shape.alignment); }

ArenaMap persistent_arena(const StageShape& shape, PersistentState state) {
  ArenaMap arena;
  const auto take = [&](int64_t bytes) {
    const Segment segment{arena.bytes, bytes};
    arena.bytes += round_up(bytes, shape.alignment);
    return segment;
  };
  const bool training = state == PersistentState::training;
  const int64_t kept = shape.held(1);
  arena.step_inputs = take(sizeof(StepInputs));
  arena.metrics = take(kStepMetrics * size_of(DType::f64));
  const GraphTensor* table = constant_table(shape);
  arena.constants = take(table != nullptr ? table->type().bytes() : 0);
  arena.data = take(shape.reads_data() ? shape.most_micro_batches * data_stride(shape) : 0);
  arena.parameters = take(shape.held(3) * size_of(shape.precision.parameter));
  arena.gradients = take(training ? shape.held(2) * size_of(shape.accumulate_dtype()) : 0);
  arena.master = take(training && shape.precision.master_copy ? kept * size_of(DType::f32) : 0);
  arena.moment1 = take(training ? kept * size_of(shape.precision.moment) : 0);
  arena.moment2 = take(training ? kept * size_of(shape.precision.moment) : 0);
  arena.persistent_bytes = arena.bytes;
  return arena;
}

namespace {

/// Targets of the micro-batch, or this tensor rank's share of them.
Place targets_place(const GraphTensor& targets, const StageShape& shape) {
  Place place{Register::data, data_stride(shape) / 2};
  if (targets.dims.at(0).size == shape.rows) return place;
  place.share_stride = targets.type().bytes();
  place.share_of = ShareOf::tensor;
  return place;
}

}  // namespace

std::map<int, Place> persistent_places(const Graph& graph, const LayerKind& kind, const StageShape& shape,
                                       const ArenaMap& arena) {
  std::map<int, Place> places;
  const auto weight_place = [&](int weight, Register own, Register expert, Register tied, DType dtype,
                                MemoryKind memory) {
    const int64_t offset = kind.unit.offsets[weight], expert_offset = kind.experts.offsets[weight];
    if (offset >= 0) return Place{own, offset * size_of(dtype), memory};
    if (expert_offset >= 0) return Place{expert, expert_offset * size_of(dtype), memory};
    const int table = weight_named(shape.embedding.graph, graph.weights[static_cast<size_t>(weight)].tied_to);
    return Place{tied, shape.embedding.unit.offsets[static_cast<size_t>(table)] * size_of(dtype), memory};
  };
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const GraphTensor& tensor = graph.tensors[t];
    const int index = static_cast<int>(t);
    switch (tensor.role) {
      case TensorRole::weight:
        places[index] = weight_place(tensor.weight, Register::parameter, Register::expert_parameter,
                                     Register::tied_parameter, shape.precision.parameter, MemoryKind::parameters);
        break;
      case TensorRole::weight_gradient:
        places[index] = weight_place(tensor.weight, Register::gradient, Register::expert_gradient,
                                     Register::tied_gradient, shape.precision.gradient, MemoryKind::gradients);
        break;
      case TensorRole::tokens: places[index] = {Register::data, 0}; break;
      case TensorRole::targets: places[index] = targets_place(tensor, shape); break;
      case TensorRole::constant: places[index] = {Register::absolute, arena.constants.offset}; break;
      case TensorRole::loss: places[index] = {Register::absolute, place_of(arena, StepMetric::loss)}; break;
      case TensorRole::auxiliary_loss:
        places[index] = {Register::absolute, place_of(arena, StepMetric::auxiliary_loss)};
        break;
      case TensorRole::overflow: places[index] = {Register::absolute, place_of(arena, StepMetric::overflow)}; break;
      default: break;
    }
  }
  return places;
}

RegisterFile parameter_registers(const StageShape& shape, const ArenaMap& arena, int64_t unit_offset) {
  const Sharing& sharing = shape.sharing;
  RegisterFile registers = unit_registers(shape, arena, sharing, Register::parameter, Register::gradient,
                                          [&](int32_t zero) { return sharing.held(unit_offset, zero); });
  if (shape.tied_here) {
    const Precision& precision = shape.precision;
    registers[static_cast<size_t>(Register::tied_parameter)] =
        sharing.shards_parameters() ? 0
                                    : arena.parameters.offset + shape.embedding_offset * size_of(precision.parameter);
    registers[static_cast<size_t>(Register::tied_gradient)] =
        shape.transient_gradients(sharing)
            ? 0
            : arena.gradients.offset + shape.embedding_offset * size_of(precision.gradient);
  }
  return registers;
}

RegisterFile expert_registers(const StageShape& shape, const ArenaMap& arena, int64_t unit_offset) {
  const Sharing& sharing = shape.expert_sharing;
  return unit_registers(shape, arena, sharing, Register::expert_parameter, Register::expert_gradient,
                        [&](int32_t zero) { return shape.dense_held(zero) + sharing.held(unit_offset, zero); });
}

}  // namespace foresail
