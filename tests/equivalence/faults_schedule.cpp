// Faults of the order of things: pipeline schedules, slots, recompute.
#include <algorithm>

#include "tests/equivalence/faults.h"

namespace foresail::testing {
namespace {

using enum InstructionKind;

const char* const kInterleaved = "pp=2,schedule=interleaved,virtual_stages=2,micro_batch=1";
const char* const kSplit = "pp=2,schedule=zb-h1,micro_batch=2";
const char* const kTurn = "pp=2,schedule=zb-v,virtual_stages=2,micro_batch=2";

/// Replayed operators of one kind are left out.
Fault stale(std::string name, OpKind kind) {
  return in_program(std::move(name), [kind](Program& p, const MeshCoordinate&) { remove(p, replayed(kind)); });
}

void erase_entry(Program& program, Phase phase, int32_t chunk, int32_t micro_batch) {
  ScheduleEntry& entry = entry_of(program, phase, chunk, micro_batch);
  program.schedule.erase(program.schedule.begin() + (&entry - program.schedule.data()));
}

/// The head's norm takes in the table's gradient, which the stage reduces but does not own.
void count_second_holder(Program& program, const MeshCoordinate&) {
  const auto named = [&](const char* name) {
    return std::find_if(program.blocks.begin(), program.blocks.end(), [&](const Block& b) { return b.name == name; });
  };
  const auto norm = named("head.norm"), reduction = named("head.finish_reduction");
  if (norm == program.blocks.end() || reduction == program.blocks.end()) return;
  const int32_t table = reduction->instructions.front().inputs.front();
  norm->buffers.push_back(reduction->buffers[static_cast<size_t>(table)]);
  Instruction count = norm->instructions.front();
  count.inputs = {static_cast<int32_t>(norm->buffers.size()) - 1};
  count.attributes.count_rule = CountRule::every_tensor_rank;
  norm->instructions.push_back(count);
}

void plant_chunk_faults(FaultList& list) {
  list.add("llama", kInterleaved,
           in_program("each chunk runs forward with the other's weights", [](Program& p, const MeshCoordinate& place) {
             if (place.pp != 0) return;
             auto& forward = p.calls[static_cast<size_t>(Phase::forward)];
             const auto first = calls_named(p, Phase::forward, 0, "block.forward");
             const auto second = calls_named(p, Phase::forward, 1, "block.forward");
             const auto parameter = static_cast<size_t>(Register::parameter);
             std::swap(forward[0][first.at(0)].base[parameter], forward[1][second.at(0)].base[parameter]);
           }));
  list.add(
      "llama", kInterleaved,
      in_program("a chunk's backward reads another micro-batch's slot", [](Program& p, const MeshCoordinate& place) {
        if (place.pp != 0) return;
        const int64_t other = entry_of(p, Phase::forward, 0, 0).slot_offset;
        entry_of(p, Phase::backward, 0, 1).slot_offset = other;
      }));
  list.add("deep", "pp=2,schedule=interleaved,virtual_stages=2,micro_batch=1",
           in_program("layers of a chunk in the wrong order", [](Program& p, const MeshCoordinate& place) {
             if (place.pp != 0) return;
             auto& forward = p.calls[static_cast<size_t>(Phase::forward)][1];
             const auto layers = calls_named(p, Phase::forward, 1, "block.forward");
             const auto parameter = static_cast<size_t>(Register::parameter);
             std::swap(forward[layers.at(0)].base[parameter], forward[layers.at(1)].base[parameter]);
           }));
}

void plant_split_faults(FaultList& list) {
  list.add("llama", kSplit,
           in_program("the weight gradient of a micro-batch is dropped", [](Program& p, const MeshCoordinate& place) {
             if (place.pp == 1) erase_entry(p, Phase::weight_gradient, 0, 2);
           }));
  list.add("llama", kSplit,
           in_program("the weight gradient of another micro-batch: a carried slot is mixed up",
                      [](Program& p, const MeshCoordinate& place) {
                        if (place.pp != 1) return;
                        ScheduleEntry& entry = entry_of(p, Phase::weight_gradient, 0, 1);
                        entry.carried_offset = entry_of(p, Phase::weight_gradient, 0, 0).carried_offset;
                      }));
  list.add(
      "llama", kTurn,
      in_program("the weight gradient of a micro-batch is counted twice", [](Program& p, const MeshCoordinate& place) {
        if (place.pp != 0) return;
        const ScheduleEntry twice = entry_of(p, Phase::weight_gradient, 1, 1);
        const auto at = std::find_if(p.schedule.begin(), p.schedule.end(), [&](const ScheduleEntry& entry) {
          return entry.phase == twice.phase && entry.chunk == 1 && entry.micro_batch == 1;
        });
        p.schedule.insert(at, twice);
      }));
  list.add("gpt2", kTurn, in_program("the turn hands over nothing", [](Program& p, const MeshCoordinate& place) {
             if (place.pp == 1) remove(p, in_block("hand_over", OpKind::copy));
           }));
}

}  // namespace

void plant_pipeline_faults(FaultList& list) {
  list.add("gpt2", "pp=2,micro_batch=2",
           in_program("tied gradient counted once: the embedding's copies are not summed",
                      [](Program& p, const MeshCoordinate&) {
                        remove(p, in_block("embedding.finish_reduction", all_reduce, GroupKind::embedding));
                        remove(p, in_block("head.finish_reduction", all_reduce, GroupKind::embedding));
                      }));
  list.add("gpt2", "pp=2,micro_batch=2",
           in_program("tied table counted by both holders in the norm", count_second_holder));
  list.add(
      "llama", "pp=2,micro_batch=1",
      in_program("gradient of another micro-batch: a slot is mixed up", [](Program& p, const MeshCoordinate& place) {
        if (place.pp != 0) return;
        entry_of(p, Phase::backward, 0, 3).slot_offset = entry_of(p, Phase::backward, 0, 2).slot_offset;
      }));
  list.add("llama", "pp=2,micro_batch=2,schedule=gpipe",
           in_program("GPipe: all backwards read the first slot", [](Program& p, const MeshCoordinate& place) {
             if (place.pp != 1) return;
             const int64_t first = entry_of(p, Phase::forward, 0, 0).slot_offset;
             for (ScheduleEntry& entry : p.schedule) {
               if (entry.phase == Phase::backward) entry.slot_offset = first;
             }
           }));
  list.add("llama", "pp=2,micro_batch=2,stage_layers=1+3",
           in_program("a stage leaves out its last layer", [](Program& p, const MeshCoordinate& place) {
             if (place.pp != 1) return;
             const auto layers = calls_named(p, Phase::forward, 0, "block.forward");
             auto& forward = p.calls[static_cast<size_t>(Phase::forward)][0];
             const auto parameter = static_cast<size_t>(Register::parameter);
             forward[layers.back()].base[parameter] = forward[layers.front()].base[parameter];
           }));
  plant_chunk_faults(list);
  plant_split_faults(list);
}

void plant_recompute_faults(FaultList& list) {
  list.add("llama", "micro_batch=2,recompute=full", stale("stale recompute: SwiGLU is not replayed", OpKind::swiglu));
  list.add("llama", "micro_batch=2,recompute=full",
           stale("stale recompute: a product is not replayed", OpKind::linear));
  list.add("llama", "micro_batch=2,recompute=selective",
           stale("stale selective recompute: SwiGLU is not replayed", OpKind::swiglu));
  list.add("gpt2", "micro_batch=2,recompute=selective",
           stale("stale selective recompute: a norm is not replayed", OpKind::layer_norm));
  list.add("llama", "micro_batch=2,recompute_layers=0-1:full/2-3:full",
           stale("stale recompute by rule: SwiGLU is not replayed", OpKind::swiglu));
  list.add("gpt2", "micro_batch=2,recompute=full",
           in_program("replayed dropout draws other numbers", [](Program& p, const MeshCoordinate&) {
             change(p, replayed(OpKind::attention), [](Instruction& i) { i.attributes.random_site += 1; });
           }));
}

}  // namespace foresail::testing
