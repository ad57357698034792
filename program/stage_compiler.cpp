#include "program/stage_compiler.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/round_up.h"
#include "program/block_store.h"
#include "program/chunk_lists.h"
#include "program/recompute.h"
#include "program/schedule.h"
#include "program/slots.h"
#include "program/step_blocks.h"

namespace foresail {
namespace {

size_t index_of(Phase phase) { return static_cast<size_t>(phase); }

/// Assembles the Program of one stage: lists of calls with their blocks, then slots and scratch, then the schedule.
class StageCompiler {
 public:
  StageCompiler(const StageShape& shape, const Target& target, const WorkspaceOf& workspace_of, PersistentState state,
                std::string name);

  Program train(int stage);
  Program evaluate(int stage);
  Program logits();

 private:
  ChunkLayout chunk_layout(size_t chunk);
  void keep(Phase phase, CallSequence sequence);
  void step_call(Phase phase, int32_t block, const RegisterFile& base = {}, int64_t layer = -1);
  void for_units(Phase phase, const std::function<std::optional<Block>(const LayerKind&)>& make);
  void for_units_staged(Phase phase, const std::function<LoweredBlock(const LayerKind&)>& make);
  void visit_units(const std::function<int32_t(const LayerKind&)>& block_of, Phase phase);
  void reductions();
  void finish(bool training);
  void forward_only_lists(bool with_loss);
  void lay_out(int stage, StageSchedule& schedule);
  void add_schedule(const StageSchedule& schedule, const std::vector<Phase>& after);

  const StageShape& shape_;
  Program program_;
  BlockStore store_;
  ChunkLists lists_;
  std::vector<std::pair<Phase, CallSequence>> sequences_;  ///< by phase, chunks in order
  std::map<std::set<int>, LayerBlocks> layer_blocks_;      ///< by what is dropped
};

StageCompiler::StageCompiler(const StageShape& shape, const Target& target, const WorkspaceOf& workspace_of,
                             PersistentState state, std::string name)
    : shape_(shape), store_(shape, target, workspace_of), lists_(shape, program_.arena, store_) {
  program_.name = std::move(name);
  program_.mesh = shape.mesh;
  program_.zero_stage = shape.zero_stage;
  program_.micro_batches = shape.micro_batches;
  program_.global_batch = shape.global_batch;
  program_.rows_per_micro_batch = shape.rows;
  program_.sequence_length = shape.sequence_length;
  program_.precision = shape.precision;
  program_.accumulate_dtype = shape.accumulate_dtype();
  program_.parameter_elements = shape.parameter_elements;
  program_.alignment = shape.alignment;
  program_.data_stride_bytes = data_stride(shape);
  program_.reads_tokens = shape.first;
  program_.reads_targets = shape.last;
  program_.arena = persistent_arena(shape, state);
}

/// Compiles each recompute choice once and stacks the layers' regions in the slot.
ChunkLayout StageCompiler::chunk_layout(size_t chunk) {
  const ChunkShape& here = shape_.chunks[chunk];
  const bool split = splits_backward(shape_.strategy.schedule);
  const Differentiated layer = differentiated_layer(shape_);
  ChunkLayout layout;
  for (int64_t i = 0; i < here.layers.count; ++i) {
    const std::set<int> dropped = dropped_tensors(layer, shape_.strategy, here.layers.first + i);
    auto found = layer_blocks_.find(dropped);
    if (found == layer_blocks_.end()) {
      found = layer_blocks_.emplace(dropped, compile_layer(shape_, program_.arena, dropped, split, store_)).first;
    }
    layout.layers.push_back(found->second);
    layout.region_offsets.push_back(layout.slot_bytes);
    layout.delayed_offsets.push_back(layout.delayed_bytes);
    layout.carried_offsets.push_back(layout.carried_bytes);
    layout.slot_bytes += found->second.region_bytes;
    layout.delayed_bytes += found->second.delayed_bytes;
    layout.carried_bytes += found->second.carried_bytes;
  }
  if (here.last) {
    layout.output_offset = layout.slot_bytes;
    layout.slot_bytes += shape_.hidden_bytes();
  }
  return layout;
}

void StageCompiler::keep(Phase phase, CallSequence sequence) { sequences_.emplace_back(phase, std::move(sequence)); }

/// Calls that belong to no micro-batch: one list per phase, each with scratch of its own.
void StageCompiler::step_call(Phase phase, int32_t block, const RegisterFile& base, int64_t layer) {
  const auto same = [&](const auto& entry) { return entry.first == phase; };
  auto found = std::find_if(sequences_.begin(), sequences_.end(), same);
  if (found == sequences_.end()) found = sequences_.insert(sequences_.end(), {phase, CallSequence{}});
  found->second.add(
      {{.block = block, .layer = static_cast<int32_t>(layer), .base = base}, store_.at(block).scratch_bytes, {}, {}});
}

/// One call per unit of the stage; units of a kind share their block.
void StageCompiler::visit_units(const std::function<int32_t(const LayerKind&)>& block_of, Phase phase) {
  const auto once = [&](const LayerKind& kind, int64_t offset) {
    const int32_t block = block_of(kind);
    if (block >= 0) step_call(phase, block, parameter_registers(shape_, program_.arena, offset));
  };
  if (shape_.first) once(shape_.embedding, shape_.embedding_offset);
  const int32_t layer = block_of(shape_.block);
  for (size_t c = 0; layer >= 0 && c < shape_.chunks.size(); ++c) {
    for (int64_t i = 0; i < shape_.chunks[c].layers.count; ++i) {
      step_call(phase, layer, parameter_registers(shape_, program_.arena, shape_.layer_offset(c, i)),
                shape_.chunks[c].layers.first + i);
    }
  }
  if (shape_.last) once(shape_.head, shape_.head_offset);
}

void StageCompiler::for_units(Phase phase, const std::function<std::optional<Block>(const LayerKind&)>& make) {
  visit_units(
      [&](const LayerKind& kind) {
        std::optional<Block> block = make(kind);
        return block ? store_.add(std::move(*block)) : -1;
      },
      phase);
}

void StageCompiler::for_units_staged(Phase phase, const std::function<LoweredBlock(const LayerKind&)>& make) {
  visit_units([&](const LayerKind& kind) { return store_.add_staged(make(kind)); }, phase);
}

/// What backward has not reduced yet.
void StageCompiler::reductions() {
  const QueuePolicy& queues = store_.queues();
  if (const auto channels = lists_.sent_channels(true); !channels.empty()) {
    step_call(Phase::reduce_gradients, store_.add(wait_block(channels, 0, queues)));
  }
  if (shape_.mesh.data_ranks() > 1 && !shape_.reduces_in_backward() && !shape_.shards_gradients()) {
    if (shape_.shards_state()) {
      for_units_staged(Phase::reduce_gradients,
                       [&](const LayerKind& kind) { return reduce_block(shape_, whole(kind), queues); });
    } else {
      step_call(Phase::reduce_gradients, store_.add_staged(bucket_block(shape_, shape_.parameter_elements, queues)),
                parameter_registers(shape_, program_.arena, 0));
    }
  }
  for_units(Phase::reduce_gradients,
            [&](const LayerKind& kind) { return finish_reduction_block(shape_, kind, queues); });
}

void StageCompiler::finish(bool training) {
  const ArenaMap& arena = program_.arena;
  if (auto block = startup_block(shape_, arena)) step_call(Phase::startup, store_.add(std::move(*block)));
  step_call(Phase::begin_step, store_.add(begin_step_block(shape_, arena, training)));
  if (training) {
    for_units(Phase::grad_norm, [&](const LayerKind& kind) { return norm_block(shape_, kind, arena); });
  } else if (const auto channels = lists_.sent_channels(false); !channels.empty()) {
    step_call(Phase::grad_norm, store_.add(wait_block(channels, 0, store_.queues())));
  }
  Block metrics = finish_metrics_block(shape_, arena, training, store_.queues());
  if (!metrics.instructions.empty()) step_call(Phase::grad_norm, store_.add(std::move(metrics)));
  if (training) {
    for_units(Phase::update, [&](const LayerKind& kind) { return update_block(shape_, kind, arena, store_.queues()); });
  }
}

/// Slots and scratch follow the persistent region; then all addresses are final.
void StageCompiler::lay_out(int stage, StageSchedule& schedule) {
  program_.stage = stage;
  ArenaMap& arena = program_.arena;
  for (size_t c = 0; c < program_.chunks.size(); ++c) {
    program_.chunks[c].slots = schedule.slots.at(c);
    program_.chunks[c].carried_slots = program_.chunks[c].carried_bytes > 0 ? schedule.carried_slots.at(c) : 0;
  }
  ListScratch scratch;
  std::map<Phase, int32_t> chunk_of_phase;
  for (auto& [phase, sequence] : sequences_) {
    place_scratch(sequence, shape_.alignment);
    if (of_micro_batch(phase)) scratch[{phase, chunk_of_phase[phase]++}] = sequence.scratch_bytes;
  }
  arena.slots = {arena.bytes, place_slots(program_.chunks, scratch, schedule.entries)};
  arena.scratch = {arena.slots.offset + arena.slots.bytes, lists_.zones_bytes()};
  for (auto& [phase, sequence] : sequences_) {
    relocate_zones(sequence, arena.scratch.offset);
    if (!of_micro_batch(phase)) {  // no micro-batch is in flight
      relocate_scratch(sequence, arena.slots.offset);
      arena.scratch.bytes = std::max(arena.scratch.bytes, sequence.scratch_bytes - arena.slots.bytes);
    }
    auto& list = program_.calls[index_of(phase)].emplace_back();
    for (const PlannedCall& planned : sequence.calls) list.push_back(planned.call);
  }
  arena.bytes = arena.scratch.offset + arena.scratch.bytes;
  program_.blocks = store_.take();
}

void StageCompiler::add_schedule(const StageSchedule& schedule, const std::vector<Phase>& after) {
  program_.schedule.push_back({Phase::begin_step});
  for (ScheduleEntry entry : schedule.entries) {
    if (program_.chunks[static_cast<size_t>(entry.chunk)].carried_slots == 0) entry.carried_slot = 0;
    program_.schedule.push_back(entry);
  }
  for (const Phase phase : after) {
    if (!program_.calls[index_of(phase)].empty()) program_.schedule.push_back({phase});
  }
}

Chunk chunk_of(const ChunkShape& shape) {
  Chunk chunk;
  chunk.virtual_stage = static_cast<int32_t>(shape.virtual_stage);
  chunk.first_layer = static_cast<int32_t>(shape.layers.first);
  chunk.layers = static_cast<int32_t>(shape.layers.count);
  return chunk;
}

Program StageCompiler::train(int stage) {
  std::vector<ChunkLayout> layouts;
  for (size_t c = 0; c < shape_.chunks.size(); ++c) {
    layouts.push_back(chunk_layout(c));
    program_.chunks.push_back(chunk_of(shape_.chunks[c]));
    program_.chunks.back().slot_bytes = layouts[c].slot_bytes;
    program_.chunks.back().delayed_bytes = layouts[c].delayed_bytes;
    program_.chunks.back().carried_bytes = layouts[c].carried_bytes;
  }
  for (size_t c = 0; c < layouts.size(); ++c) keep(Phase::forward, lists_.forward(c, layouts[c]));
  for (size_t c = 0; c < layouts.size(); ++c) keep(Phase::backward, lists_.backward(c, layouts[c]));
  if (splits_backward(shape_.strategy.schedule)) {
    for (size_t c = 0; c < layouts.size(); ++c) keep(Phase::weight_gradient, lists_.weight_gradient(c, layouts[c]));
  }
  reductions();
  finish(true);
  StageSchedule schedule = training_schedule(shape_.strategy, stage, shape_.micro_batches);
  lay_out(stage, schedule);
  lists_.take_turns(schedule.entries);
  add_schedule(schedule, {Phase::reduce_gradients, Phase::grad_norm, Phase::update});
  return std::move(program_);
}

void StageCompiler::forward_only_lists(bool with_loss) {
  ForwardBlocks blocks;
  if (shape_.first) blocks.embedding = compile_embedding_forward(shape_, program_.arena, store_);
  blocks.layer = compile_layer_forward(shape_, program_.arena, store_);
  if (shape_.last) blocks.head = compile_head_forward(shape_, program_.arena, with_loss, store_);
  for (size_t c = 0; c < shape_.chunks.size(); ++c) {
    program_.chunks.push_back(chunk_of(shape_.chunks[c]));
    program_.chunks.back().slot_bytes = 2 * shape_.hidden_bytes();
    keep(Phase::forward, lists_.forward_only(c, blocks));
  }
}

Program StageCompiler::evaluate(int stage) {
  forward_only_lists(true);
  finish(false);
  StageSchedule schedule = forward_schedule(shape_.strategy, stage, shape_.micro_batches);
  lay_out(stage, schedule);
  lists_.take_turns(schedule.entries);
  add_schedule(schedule, {Phase::grad_norm});
  return std::move(program_);
}

Program StageCompiler::logits() {
  forward_only_lists(false);
  if (auto block = startup_block(shape_, program_.arena)) step_call(Phase::startup, store_.add(std::move(*block)));
  StageSchedule schedule = forward_schedule(shape_.strategy, 0, 1);
  lay_out(0, schedule);
  program_.reads_targets = false;
  program_.schedule = schedule.entries;
  return std::move(program_);
}

}  // namespace

Program compile_training(const StageShape& shape, const Target& target, const WorkspaceOf& workspace_of, int stage) {
  return StageCompiler(shape, target, workspace_of, PersistentState::training, "train").train(stage);
}

Program compile_evaluation(const StageShape& shape, const Target& target, const WorkspaceOf& workspace_of, int stage) {
  return StageCompiler(shape, target, workspace_of, PersistentState::training, "evaluate").evaluate(stage);
}

Program compile_forward_to_logits(const StageShape& shape, const Target& target, const WorkspaceOf& workspace_of) {
  return StageCompiler(shape, target, workspace_of, PersistentState::parameters_only, "logits").logits();
}

}  // namespace foresail
