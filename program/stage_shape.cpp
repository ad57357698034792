#include "program/stage_shape.h"

#include "core/error.h"
#include "ops/step_inputs.h"
#include "program/fuse.h"
#include "program/shard.h"

namespace foresail {
namespace {

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

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

void place_units(StageShape& shape) {
  const int64_t tp = shape.strategy.tp;
  shape.embedding.unit = place_weights(shape.embedding.graph, tp, {}, {});
  shape.block.unit = place_weights(shape.block.graph, tp, {}, {});
  const std::set<int> tied = tied_weights(shape.head.graph);
  const bool one_stage = shape.first && shape.last;
  if (!one_stage) shape.head.second_holder = tied;
  shape.head.unit = place_weights(shape.head.graph, tp, one_stage ? tied : std::set<int>{}, shape.head.second_holder);
  shape.tied_across_stages = !tied.empty() && !one_stage && (shape.first || shape.last);
  shape.layers_offset = shape.first ? shape.embedding.unit.elements : 0;
  shape.head_offset = shape.layer_offset(shape.layers.count);
  shape.parameter_elements = shape.head_offset + (shape.last ? shape.head.unit.elements : 0);
  if (one_stage && !tied.empty()) {
    const std::string& name = shape.head.graph.weights[*tied.begin()].tied_to;
    shape.tied_offset =
        shape.embedding_offset + shape.embedding.unit.offsets[weight_named(shape.embedding.graph, name)];
  }
}

}  // namespace

int64_t StageShape::hidden_bytes() const { return round_up(rows * hidden * size_of(precision.activation), alignment); }

StageShape shape_stage(const ModelSpec& model, const ShapeRequest& request, const Strategy& strategy,
                       const Target& target, int stage) {
  StageShape shape;
  shape.strategy = strategy;
  shape.precision = request.precision;
  shape.alignment = target.alignment;
  shape.layers = stage_layers(model.layers, strategy.pp).at(stage);
  shape.first = stage == 0;
  shape.last = stage == strategy.pp - 1;
  shape.micro_batches = request.global_batch / (strategy.dp * strategy.micro_batch);
  shape.sequence_length = request.sequence_length;
  shape.rows = strategy.micro_batch * request.sequence_length;
  shape.hidden = model.hidden;
  const GraphOptions options{strategy.micro_batch, request.sequence_length, shape.precision, target.unfused_attention};
  const ModelGraphs graphs = build_graphs(request.dropout ? model : without_dropout(model), options);
  const auto prepare = [&](const Graph& graph) {
    Graph sharded = shard(graph, strategy.tp);
    if (target.fused_kernels) fuse_forward(sharded);
    return sharded;
  };
  shape.embedding.graph = prepare(graphs.embedding);
  shape.block.graph = prepare(graphs.block);
  shape.head.graph = prepare(graphs.head);
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
  const int64_t elements = shape.parameter_elements;
  arena.step_inputs = take(sizeof(StepInputs));
  arena.metrics = take(4 * size_of(DType::f64));
  const int constant = shape.block.graph.find(TensorRole::constant);
  arena.constants = take(constant >= 0 ? shape.block.graph.tensors[constant].type().bytes() : 0);
  arena.data = take(shape.first || shape.last ? shape.micro_batches * data_stride(shape) : 0);
  arena.parameters = take(elements * size_of(shape.precision.parameter));
  arena.gradients = take(training ? elements * size_of(shape.precision.gradient) : 0);
  arena.master = take(training && shape.precision.master_copy ? elements * size_of(DType::f32) : 0);
  arena.moment1 = take(training ? elements * size_of(shape.precision.moment) : 0);
  arena.moment2 = take(training ? elements * size_of(shape.precision.moment) : 0);
  arena.persistent_bytes = arena.bytes;
  return arena;
}

std::map<int, Place> persistent_places(const Graph& graph, const Unit& unit, const StageShape& shape,
                                       const ArenaMap& arena) {
  std::map<int, Place> places;
  const auto parameter_place = [&](int weight, Register base, int64_t segment, DType dtype, MemoryKind memory) {
    if (unit.offsets[weight] >= 0) return Place{base, unit.offsets[weight] * size_of(dtype), memory};
    return Place{Register::absolute, segment + shape.tied_offset * size_of(dtype), memory};
  };
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const GraphTensor& tensor = graph.tensors[t];
    const int index = static_cast<int>(t);
    switch (tensor.role) {
      case TensorRole::weight:
        places[index] = parameter_place(tensor.weight, Register::parameter, arena.parameters.offset,
                                        shape.precision.parameter, MemoryKind::parameters);
        break;
      case TensorRole::weight_gradient:
        places[index] = parameter_place(tensor.weight, Register::gradient, arena.gradients.offset,
                                        shape.precision.gradient, MemoryKind::gradients);
        break;
      case TensorRole::tokens: places[index] = {Register::data, 0}; break;
      case TensorRole::targets: places[index] = {Register::data, data_stride(shape) / 2}; break;
      case TensorRole::constant: places[index] = {Register::absolute, arena.constants.offset}; break;
      case TensorRole::loss: places[index] = {Register::absolute, arena.metrics.offset}; break;
      default: break;
    }
  }
  return places;
}

RegisterFile parameter_registers(const StageShape& shape, const ArenaMap& arena, int64_t unit_offset) {
  RegisterFile registers{};
  const auto set = [&](Register base, const Segment& segment, DType dtype) {
    registers[static_cast<size_t>(base)] = segment.offset + unit_offset * size_of(dtype);
  };
  set(Register::parameter, arena.parameters, shape.precision.parameter);
  set(Register::gradient, arena.gradients, shape.precision.gradient);
  set(Register::master, arena.master, DType::f32);
  set(Register::moment1, arena.moment1, shape.precision.moment);
  set(Register::moment2, arena.moment2, shape.precision.moment);
  return registers;
}

}  // namespace foresail
