#include "program/stage_compiler.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "program/fuse.h"
#include "program/recompute.h"
#include "program/schedule.h"
#include "program/step_blocks.h"

namespace foresail {
namespace {

constexpr int32_t kActivations = 0, kGradients = 1;  // message channels

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

size_t index_of(Register base) { return static_cast<size_t>(base); }
size_t index_of(Phase phase) { return static_cast<size_t>(phase); }

std::vector<PlannedNode> planned(int begin, int end, TimeKind time) {
  std::vector<PlannedNode> nodes;
  for (int n = begin; n < end; ++n) nodes.push_back({n, time});
  return nodes;
}

/// Assembles the Program of one stage: blocks, then the arena, then calls and schedule.
class StageCompiler {
 public:
  StageCompiler(const StageShape& shape, const Target& target, const WorkspaceOf& workspace_of, PersistentState state,
                std::string name)
      : shape_(shape),
        blocking_(target.blocking_communication),
        workspace_of_([&target, &workspace_of](const OpInstance& op) -> int64_t {
          const auto listed = target.workspace_bytes.find(signature(op));
          if (listed != target.workspace_bytes.end()) return listed->second;
          return workspace_of ? workspace_of(op) : 0;
        }) {
    program_.name = std::move(name);
    program_.mesh = Mesh::of(shape.strategy);
    program_.micro_batches = shape.micro_batches;
    program_.rows_per_micro_batch = shape.rows;
    program_.sequence_length = shape.sequence_length;
    program_.precision = shape.precision;
    program_.parameter_elements = shape.parameter_elements;
    program_.alignment = shape.alignment;
    program_.data_stride_bytes = data_stride(shape);
    program_.reads_tokens = shape.first;
    program_.reads_targets = shape.last;
    program_.arena = persistent_arena(shape, state);
    hidden_zone_ = {Register::absolute, shape.hidden_bytes(), MemoryKind::scratch, true};
    gradient_zone_ = {Register::absolute, 0, MemoryKind::scratch, true};
  }

  Program train(int stage, Recompute recompute);
  Program evaluate(int stage);
  Program logits();

 private:
  /// The kept activations of a layer: where they are in its region of a slot, and how large the region is.
  struct Region {
    std::map<int, Place> kept;
    int64_t bytes = 0;
  };

  Region region_of(const Differentiated& layer, const std::set<int>& dropped) const;
  int32_t add(LoweredBlock lowered);
  int32_t add(Block block) { return add(with_workspace(std::move(block), workspace_of_, shape_.alignment)); }
  int32_t lower(BlockRequest request) { return add(lower_block(std::move(request), workspace_of_, blocking_)); }
  BlockRequest request(const std::string& name, const Graph& graph, const LayerKind& kind) const;
  void call(Phase phase, int32_t block, RegisterFile base = {}, int64_t layer = -1);

  void embedding_forward();
  void layers_forward(const Differentiated& layer, const Region& region);
  void layers_backward(const Differentiated& layer, const Region& region, const std::set<int>& dropped);
  void head_training();
  void embedding_backward();
  void receive_hidden(int stage);
  void send_hidden(int stage, const Place& place, const RegisterFile& base);
  void receive_gradient(int stage);
  void send_gradient(int stage);
  void reductions(const Differentiated& layer);
  void bookkeeping(bool training);
  RegisterFile layer_registers(int64_t index) const;
  RegisterFile ping_pong_registers(int64_t index) const;
  void forward_only_blocks(int stage, bool with_loss);
  void lay_out(int stage);

  const StageShape& shape_;
  bool blocking_;
  WorkspaceOf workspace_of_;
  Program program_;
  std::vector<LoweredBlock> lowered_;
  Place gradient_zone_;  ///< scratch: gradient of hidden states, passed from layer to layer
  Place hidden_zone_;    ///< scratch: hidden states that leave the last layer of the stage
  int64_t zones_bytes_ = 0;
  int64_t region_bytes_ = 0;
};

int32_t StageCompiler::add(LoweredBlock lowered) {
  lowered_.push_back(std::move(lowered));
  return static_cast<int32_t>(lowered_.size()) - 1;
}

void StageCompiler::call(Phase phase, int32_t block, RegisterFile base, int64_t layer) {
  program_.calls[index_of(phase)].push_back({block, static_cast<int32_t>(layer), false, base});
}

BlockRequest StageCompiler::request(const std::string& name, const Graph& graph, const LayerKind& kind) const {
  BlockRequest result;
  result.name = name;
  result.graph = &graph;
  result.pinned = persistent_places(graph, kind.unit, shape_, program_.arena);
  result.alignment = shape_.alignment;
  result.scratch_begin = zones_bytes_;
  return result;
}

StageCompiler::Region StageCompiler::region_of(const Differentiated& layer, const std::set<int>& dropped) const {
  Region region;
  region.bytes = shape_.hidden_bytes();  // the layer's input comes first
  for (const int tensor : layer.saved) {
    if (dropped.count(tensor) != 0) continue;
    region.kept[tensor] = {Register::saved, region.bytes, MemoryKind::activations};
    region.bytes += round_up(layer.graph.tensors[tensor].type().bytes(), shape_.alignment);
  }
  return region;
}

/// Layer `index` of this stage in training: its region of the slot, its output in the next region (the last output goes
/// to scratch, where the head or the message to the next stage reads it).
RegisterFile StageCompiler::layer_registers(int64_t index) const {
  RegisterFile base = parameter_registers(shape_, program_.arena, shape_.layer_offset(index));
  base[index_of(Register::saved)] = base[index_of(Register::x_in)] = index * region_bytes_;
  base[index_of(Register::x_out)] = (index + 1) * region_bytes_;
  return base;
}

/// Without backward two buffers take turns.
RegisterFile StageCompiler::ping_pong_registers(int64_t index) const {
  RegisterFile base = parameter_registers(shape_, program_.arena, shape_.layer_offset(index));
  base[index_of(Register::x_in)] = index % 2 * shape_.hidden_bytes();
  base[index_of(Register::x_out)] = (index + 1) % 2 * shape_.hidden_bytes();
  return base;
}

void StageCompiler::embedding_forward() {
  const Graph& graph = shape_.embedding.graph;
  BlockRequest forward = request("embedding.forward", graph, shape_.embedding);
  forward.nodes = planned(0, static_cast<int>(graph.nodes.size()), TimeKind::compute);
  const int output = graph.find(TensorRole::layer_output);
  forward.pinned[output] = {Register::x_out, 0, MemoryKind::activations};
  forward.live_out = {output};
  call(Phase::forward, lower(forward), parameter_registers(shape_, program_.arena, shape_.embedding_offset));
}

void StageCompiler::layers_forward(const Differentiated& layer, const Region& region) {
  const Graph& graph = layer.graph;
  BlockRequest forward = request("block.forward", graph, shape_.block);
  forward.nodes = planned(0, layer.forward_nodes, TimeKind::compute);
  const int input = graph.find(TensorRole::layer_input);
  const int output = graph.find(TensorRole::layer_output);
  forward.pinned[input] = {Register::x_in, 0, MemoryKind::activations};
  forward.pinned[output] = {Register::x_out, 0, MemoryKind::activations};
  forward.live_out = {input, output};
  for (const auto& [tensor, place] : region.kept) {
    forward.pinned[tensor] = place;
    forward.live_out.insert(tensor);
  }
  const int32_t block = lower(forward);
  for (int64_t i = 0; i < shape_.layers.count; ++i) {
    call(Phase::forward, block, layer_registers(i), shape_.layers.first + i);
  }
}

void StageCompiler::layers_backward(const Differentiated& layer, const Region& region, const std::set<int>& dropped) {
  const Graph& graph = layer.graph;
  BlockRequest backward = request("block.backward", graph, shape_.block);
  for (const int node : replayed_nodes(layer, dropped)) backward.nodes.push_back({node, TimeKind::recompute});
  for (const PlannedNode& node :
       planned(layer.forward_nodes, static_cast<int>(graph.nodes.size()), TimeKind::compute)) {
    backward.nodes.push_back(node);
  }
  backward.scratch_begin = 0;
  backward.hole_bytes = region.bytes;
  backward.pinned.insert(region.kept.begin(), region.kept.end());
  backward.pinned[graph.find(TensorRole::layer_input)] = {Register::x_in, 0, MemoryKind::activations};
  backward.pinned[graph.find(TensorRole::output_gradient)] = gradient_zone_;
  const int dx = graph.find(TensorRole::input_gradient);
  backward.pinned[dx] = gradient_zone_;
  backward.live_out = {dx};
  const int32_t block = lower(backward);
  for (int64_t i = shape_.layers.count - 1; i >= 0; --i) {
    call(Phase::backward, block, layer_registers(i), shape_.layers.first + i);
  }
}

/// Forward and backward of the head in one block, so that logits never outlive it.
void StageCompiler::head_training() {
  Differentiated head = differentiate(shape_.head.graph);
  fuse_backward(head);
  const Graph& graph = head.graph;
  BlockRequest both = request("head", graph, shape_.head);
  both.nodes = planned(0, static_cast<int>(graph.nodes.size()), TimeKind::compute);
  both.scratch_begin = 0;
  both.pinned[graph.find(TensorRole::layer_input)] = hidden_zone_;
  const int dx = graph.find(TensorRole::input_gradient);
  both.pinned[dx] = gradient_zone_;
  both.live_out = {dx};
  call(Phase::backward, lower(both), parameter_registers(shape_, program_.arena, shape_.head_offset));
}

void StageCompiler::embedding_backward() {
  Differentiated embedding = differentiate(shape_.embedding.graph);
  const Graph& graph = embedding.graph;
  BlockRequest backward = request("embedding.backward", graph, shape_.embedding);
  for (const int node : replayed_nodes(embedding, embedding.saved)) {
    backward.nodes.push_back({node, TimeKind::recompute});
  }
  for (const PlannedNode& node :
       planned(embedding.forward_nodes, static_cast<int>(graph.nodes.size()), TimeKind::compute)) {
    backward.nodes.push_back(node);
  }
  backward.scratch_begin = 0;
  backward.pinned[graph.find(TensorRole::output_gradient)] = gradient_zone_;
  call(Phase::backward, lower(backward), parameter_registers(shape_, program_.arena, shape_.embedding_offset));
}

/// Before forward: the previous micro-batch must have left the buffer that this one's output takes.
void StageCompiler::receive_hidden(int stage) {
  MessageRequest message{"receive_hidden", {},        InstructionKind::receive,
                         kActivations,     stage - 1, {Register::x_out, 0, MemoryKind::activations}};
  if (shape_.first) message.kind = InstructionKind::wait_send;
  if (!shape_.last) message.wait_channels = {kActivations};
  if (shape_.first && shape_.last) return;
  call(Phase::forward, add(message_block(shape_, message, blocking_)));
}

void StageCompiler::send_hidden(int stage, const Place& place, const RegisterFile& base) {
  const MessageRequest message{"send_hidden", {}, InstructionKind::send, kActivations, stage + 1, place};
  call(Phase::forward, add(message_block(shape_, message, blocking_)), base);
}

/// Before backward: what was sent must have left the buffers that backward writes.
void StageCompiler::receive_gradient(int stage) {
  MessageRequest message{"receive_gradient", {}, InstructionKind::receive, kGradients, stage + 1, gradient_zone_};
  if (!shape_.last) message.wait_channels.push_back(kActivations);
  if (!shape_.first) message.wait_channels.push_back(kGradients);
  if (shape_.last) message.kind = InstructionKind::wait_send;
  if (!message.wait_channels.empty()) call(Phase::backward, add(message_block(shape_, message, blocking_)));
}

void StageCompiler::send_gradient(int stage) {
  if (shape_.first) return;
  const MessageRequest message{"send_gradient", {}, InstructionKind::send, kGradients, stage - 1, gradient_zone_};
  call(Phase::backward, add(message_block(shape_, message, blocking_)));
}

void StageCompiler::reductions(const Differentiated& layer) {
  MessageRequest finish{"finish_sends", {}, InstructionKind::wait_send, 0, 0, {}};
  if (!shape_.last) finish.wait_channels.push_back(kActivations);
  if (!shape_.first) finish.wait_channels.push_back(kGradients);
  if (!finish.wait_channels.empty()) call(Phase::reduce_gradients, add(message_block(shape_, finish, blocking_)));
  if (auto block = tensor_reduce_block(shape_, shape_.block, layer.partial_weight_gradients, blocking_)) {
    const int32_t index = add(std::move(*block));
    for (int64_t i = 0; i < shape_.layers.count; ++i) {
      call(Phase::reduce_gradients, index, layer_registers(i), shape_.layers.first + i);
    }
  }
  if (auto block = tied_reduce_block(shape_, blocking_)) {
    const int64_t offset = shape_.first ? shape_.embedding_offset : shape_.head_offset;
    call(Phase::reduce_gradients, add(std::move(*block)), parameter_registers(shape_, program_.arena, offset));
  }
  if (auto block = data_reduce_block(shape_, program_.arena, blocking_)) {
    call(Phase::reduce_gradients, add(std::move(*block)));
  }
}

void StageCompiler::bookkeeping(bool training) {
  if (auto block = startup_block(shape_, program_.arena)) call(Phase::startup, add(std::move(*block)));
  call(Phase::begin_step, add(begin_step_block(shape_, program_.arena, training)));
  const auto for_units = [&](Phase phase, const auto& make) {
    const auto once = [&](const LayerKind& kind, const std::string& name, int64_t offset, int64_t count) {
      const int32_t block = add(make(kind, name));
      for (int64_t i = 0; i < count; ++i) {
        const int64_t layer = count > 1 || &kind == &shape_.block ? shape_.layers.first + i : -1;
        call(phase, block, parameter_registers(shape_, program_.arena, offset + i * kind.unit.elements), layer);
      }
    };
    if (shape_.first) once(shape_.embedding, "embedding", shape_.embedding_offset, 1);
    once(shape_.block, "block", shape_.layers_offset, shape_.layers.count);
    if (shape_.last) once(shape_.head, "head", shape_.head_offset, 1);
  };
  if (training) {
    for_units(Phase::grad_norm, [&](const LayerKind& kind, const std::string& name) {
      return norm_block(shape_, kind, program_.arena, name + ".norm");
    });
  }
  Block finish = finish_metrics_block(shape_, program_.arena, training, blocking_);
  if (!finish.instructions.empty()) call(Phase::grad_norm, add(std::move(finish)));
  if (training) {
    for_units(Phase::update, [&](const LayerKind& kind, const std::string& name) {
      return update_block(shape_, kind, program_.arena, name + ".update");
    });
  }
}

/// Slots and scratch follow the persistent region; then scratch addresses and block list become final.
void StageCompiler::lay_out(int stage) {
  program_.stage = stage;
  ArenaMap& arena = program_.arena;
  arena.slots = {arena.bytes, program_.slots * program_.slot_bytes};
  arena.scratch.offset = arena.slots.offset + arena.slots.bytes;
  for (const LoweredBlock& lowered : lowered_) arena.scratch.bytes = std::max(arena.scratch.bytes, lowered.scratch_end);
  arena.bytes = arena.scratch.offset + arena.scratch.bytes;
  for (LoweredBlock& lowered : lowered_) {
    relocate_scratch(lowered, arena.scratch.offset);
    program_.blocks.push_back(std::move(lowered.block));
  }
}

Program StageCompiler::train(int stage, Recompute recompute) {
  Differentiated layer = differentiate(shape_.block.graph);
  fuse_backward(layer);
  const std::set<int> dropped = dropped_tensors(layer, recompute);
  const Region region = region_of(layer, dropped);
  region_bytes_ = region.bytes;
  zones_bytes_ = 2 * shape_.hidden_bytes();
  program_.slots = micro_batches_in_flight(shape_.strategy.pp, stage, shape_.micro_batches);
  program_.slot_bytes = shape_.layers.count * region_bytes_;

  receive_hidden(stage);
  if (shape_.first) embedding_forward();
  layers_forward(layer, region);
  if (!shape_.last) send_hidden(stage, hidden_zone_, {});
  receive_gradient(stage);
  if (shape_.last) head_training();
  layers_backward(layer, region, dropped);
  if (shape_.first) embedding_backward();
  send_gradient(stage);
  reductions(layer);
  bookkeeping(true);
  lay_out(stage);
  for (Call& forward : program_.calls[index_of(Phase::forward)]) {
    if (forward.layer != shape_.layers.first + shape_.layers.count - 1) continue;
    forward.leaves_stage = true;
    forward.base[index_of(Register::x_out)] = program_.arena.scratch.offset + hidden_zone_.offset;
  }
  program_.schedule.push_back({Phase::begin_step, 0, -1, 0});
  const auto order = one_f_one_b(shape_.strategy.pp, stage, shape_.micro_batches);
  program_.schedule.insert(program_.schedule.end(), order.begin(), order.end());
  for (const Phase phase : {Phase::reduce_gradients, Phase::grad_norm, Phase::update}) {
    program_.schedule.push_back({phase, 0, -1, 0});
  }
  return std::move(program_);
}

void StageCompiler::forward_only_blocks(int stage, bool with_loss) {
  program_.slots = 1;
  program_.slot_bytes = 2 * shape_.hidden_bytes();
  receive_hidden(stage);
  if (shape_.first) embedding_forward();
  const Graph& graph = shape_.block.graph;
  BlockRequest forward = request("block.forward", graph, shape_.block);
  forward.nodes = planned(0, static_cast<int>(graph.nodes.size()), TimeKind::compute);
  const int output = graph.find(TensorRole::layer_output);
  forward.pinned[graph.find(TensorRole::layer_input)] = {Register::x_in, 0, MemoryKind::activations};
  forward.pinned[output] = {Register::x_out, 0, MemoryKind::activations};
  forward.live_out = {output};
  const int32_t block = lower(forward);
  for (int64_t i = 0; i < shape_.layers.count; ++i) {
    call(Phase::forward, block, ping_pong_registers(i), shape_.layers.first + i);
  }
  RegisterFile end = ping_pong_registers(shape_.layers.count);
  if (!shape_.last) {
    send_hidden(stage, {Register::x_out, 0, MemoryKind::activations}, ping_pong_registers(shape_.layers.count - 1));
    return;
  }
  const Graph& head = shape_.head.graph;
  BlockRequest last = request(with_loss ? "head.evaluate" : "head.logits", head, shape_.head);
  int nodes = static_cast<int>(head.nodes.size());
  if (!with_loss) {
    nodes = 0;
    while (head.tensors[head.nodes[nodes++].outputs[0]].name != "logits") {
    }
    last.live_out = {head.nodes[nodes - 1].outputs[0]};
  }
  last.nodes = planned(0, nodes, TimeKind::compute);
  last.pinned[head.find(TensorRole::layer_input)] = {Register::x_in, 0, MemoryKind::activations};
  RegisterFile base = parameter_registers(shape_, program_.arena, shape_.head_offset);
  base[index_of(Register::x_in)] = end[index_of(Register::x_in)];
  call(Phase::forward, lower(last), base);
}

Program StageCompiler::evaluate(int stage) {
  forward_only_blocks(stage, true);
  bookkeeping(false);
  lay_out(stage);
  program_.schedule.push_back({Phase::begin_step, 0, -1, 0});
  for (const ScheduleEntry& entry : forward_only(shape_.micro_batches)) program_.schedule.push_back(entry);
  if (!program_.calls[index_of(Phase::grad_norm)].empty()) program_.schedule.push_back({Phase::grad_norm, 0, -1, 0});
  return std::move(program_);
}

Program StageCompiler::logits() {
  forward_only_blocks(0, false);
  if (auto block = startup_block(shape_, program_.arena)) call(Phase::startup, add(std::move(*block)));
  lay_out(0);
  program_.reads_targets = false;
  program_.schedule = forward_only(1);
  return std::move(program_);
}

}  // namespace

Program compile_training(const StageShape& shape, const Target& target, const WorkspaceOf& workspace_of, int stage) {
  return StageCompiler(shape, target, workspace_of, PersistentState::training, "train")
      .train(stage, shape.strategy.recompute);
}

Program compile_evaluation(const StageShape& shape, const Target& target, const WorkspaceOf& workspace_of, int stage) {
  return StageCompiler(shape, target, workspace_of, PersistentState::training, "evaluate").evaluate(stage);
}

Program compile_forward_to_logits(const StageShape& shape, const Target& target, const WorkspaceOf& workspace_of) {
  return StageCompiler(shape, target, workspace_of, PersistentState::parameters_only, "logits").logits();
}

}  // namespace foresail
