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
  void for_units(Phase phase, const std::function<std::optional<Block>(const UnitPart&)>& make);
  void visit_units(const std::function<int32_t(const UnitPart&)>& make, Phase phase);
  void reductions();
  void reduce_all(const Sharing& sharing);
  void finish(bool training);
  void forward_only_lists(bool with_loss);
  void lay_out(int stage, StageSchedule& schedule);
  void add_schedule(const StageSchedule& schedule, const std::vector<Phase>& after);

  const StageShape& shape_;
  Program program_;
  BlockStore store_;
  ChunkLists lists_;
  std::vector<std::pair<Phase, CallSequence>> sequences_;  ///< by phase, chunks in order
  /// By kind and what is dropped.
  std::map<std::pair<const LayerKind*, std::set<int>>, LayerBlocks> layer_blocks_;
};

StageCompiler::StageCompiler(const StageShape& shape, const Target& target, const WorkspaceOf& workspace_of,
                             PersistentState state, std::string name)
    : shape_(shape), store_(shape, target, workspace_of), lists_(shape, program_.arena, store_) {
  program_.name = std::move(name);
  program_.mesh = shape.mesh;
  program_.zero_stage = std::max(shape.sharing.zero_stage, shape.expert_sharing.zero_stage);
  program_.micro_batches = shape.micro_batches;
  program_.global_batch = shape.global_batch;
  program_.rows_per_micro_batch = shape.rows;
  program_.sequence_length = shape.sequence_length;
  program_.precision = shape.precision;
  program_.accumulate_dtype = shape.accumulate_dtype();
  program_.parameter_elements = shape.sharing.elements;
  program_.expert_elements = shape.expert_sharing.elements;
  program_.frozen_elements = shape.sharing.frozen;
  program_.frozen_expert_elements = shape.expert_sharing.frozen;
  program_.alignment = shape.alignment;
  program_.data_stride_bytes = data_stride(shape);
  program_.reads_tokens = shape.first;
  program_.reads_targets = shape.reads_targets;
  program_.arena = persistent_arena(shape, state);
}

/// Compiles each recompute choice once and stacks the layers' regions in the slot.
ChunkLayout StageCompiler::chunk_layout(size_t chunk) {
  const ChunkShape& here = shape_.chunks[chunk];
  const bool split = splits_backward(shape_.strategy.schedule);
  std::map<const LayerKind*, Differentiated> differentiated;
  for (const LayerKind* kind : shape_.kinds_of_blocks()) differentiated[kind] = differentiated_layer(shape_, *kind);
  ChunkLayout layout;
  for (int64_t i = 0; i < here.layers.count; ++i) {
    const int64_t layer = here.layers.first + i;
    const LayerKind* kind = &shape_.block_of(layer);
    const std::set<int> dropped = dropped_tensors(differentiated.at(kind), shape_.strategy, layer);
    auto found = layer_blocks_.find({kind, dropped});
    if (found == layer_blocks_.end()) {
      const LayerBlocks blocks = compile_layer(shape_, *kind, program_.arena, dropped, split, store_);
      found = layer_blocks_.emplace(std::pair(kind, dropped), blocks).first;
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

/// One call per unit of the stage; units of a kind share their block. A block number below 0: nothing to do for the kind.
void StageCompiler::visit_units(const std::function<int32_t(const UnitPart&)>& make, Phase phase) {
  std::map<std::pair<const LayerKind*, bool>, int32_t> made;
  const auto visit = [&](const UnitPart& unit, int64_t offset, int64_t layer) {
    if (unit.elements() == 0) return;
    const auto [block, is_new] = made.try_emplace({unit.kind, unit.of_experts}, -1);
    if (is_new) block->second = make(unit);
    if (block->second < 0) return;
    step_call(phase, block->second, unit_registers(shape_, program_.arena, unit, offset), layer);
  };
  if (shape_.first) visit(whole(shape_.embedding), shape_.embedding_offset, -1);
  for (const ChunkShape& chunk : shape_.chunks) {
    for (int64_t i = 0; i < chunk.layers.count; ++i) {
      const int64_t layer = chunk.layers.first + i;
      const LayerKind& block = shape_.block_of(layer);
      visit(whole(block), chunk.layer_offsets[static_cast<size_t>(i)], layer);
      visit(experts(block), chunk.expert_offsets[static_cast<size_t>(i)], layer);
    }
  }
  if (shape_.last) visit(whole(shape_.head), shape_.head_offset, -1);
}

void StageCompiler::for_units(Phase phase, const std::function<std::optional<Block>(const UnitPart&)>& make) {
  visit_units(
      [&](const UnitPart& unit) {
        std::optional<Block> block = make(unit);
        return block ? store_.add(std::move(*block)) : -1;
      },
      phase);
}

/// What backward has not reduced yet of what is shared so.
void StageCompiler::reduce_all(const Sharing& sharing) {
  if (sharing.elements == 0 || sharing.ranks() == 1) return;
  if (shape_.reduces_in_backward(sharing) || sharing.shards_gradients()) return;
  const QueuePolicy& queues = store_.queues();
  if (sharing.shards_state()) {
    visit_units(
        [&](const UnitPart& unit) {
          if (unit.of_experts != sharing.of_experts()) return -1;
          return store_.add_staged(reduce_block(shape_, unit, queues));
        },
        Phase::reduce_gradients);
    return;
  }
  UnitPart all;
  all.of_experts = sharing.of_experts();
  step_call(Phase::reduce_gradients, store_.add_staged(bucket_block(shape_, sharing, sharing.elements, queues)),
            unit_registers(shape_, program_.arena, all, 0));
}

void StageCompiler::reductions() {
  const QueuePolicy& queues = store_.queues();
  if (const auto channels = lists_.sent_channels(true); !channels.empty()) {
    step_call(Phase::reduce_gradients, store_.add(wait_block(channels, 0, queues)));
  }
  reduce_all(shape_.sharing);
  reduce_all(shape_.expert_sharing);
  for_units(Phase::reduce_gradients,
            [&](const UnitPart& unit) { return finish_reduction_block(shape_, unit, queues); });
}

void StageCompiler::finish(bool training) {
  const ArenaMap& arena = program_.arena;
  if (auto block = startup_block(shape_, arena)) step_call(Phase::startup, store_.add(std::move(*block)));
  step_call(Phase::begin_step, store_.add(begin_step_block(shape_, arena, training)));
  if (training) {
    for_units(Phase::grad_norm, [&](const UnitPart& unit) { return norm_block(shape_, unit, arena); });
  } else if (const auto channels = lists_.sent_channels(false); !channels.empty()) {
    step_call(Phase::grad_norm, store_.add(wait_block(channels, 0, store_.queues())));
  }
  Block metrics = finish_metrics_block(shape_, arena, training, store_.queues());
  if (!metrics.instructions.empty()) step_call(Phase::grad_norm, store_.add(std::move(metrics)));
  if (training) {
    for_units(Phase::update, [&](const UnitPart& unit) { return update_block(shape_, unit, arena, store_.queues()); });
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
  for (const LayerKind* kind : shape_.kinds_of_blocks()) {
    blocks.layers[kind] = compile_layer_forward(shape_, *kind, program_.arena, store_);
  }
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
