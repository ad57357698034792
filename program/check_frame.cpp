// The frame of a Program: what its header says about arena, batch and chunks fits together and fits its blocks. Whoever
// reads a dump (a simulation, a person) trusts these figures without executing anything.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "core/round_up.h"
#include "ops/step_inputs.h"
#include "program/check_parts.h"

namespace foresail {
namespace {

struct NamedSegment {
  const char* name;
  Segment place;
};

class FrameCheck {
 public:
  FrameCheck(const Program& program, Problems& problems) : program_(program), problems_(problems) {}

  void run() {
    check_arena();
    check_batch();
    check_chunks();
    check_inputs();
    if (trains()) check_update();
    check_parameters();
  }

 private:
  bool has_phase(Phase phase) const {
    return std::any_of(program_.schedule.begin(), program_.schedule.end(),
                       [phase](const ScheduleEntry& entry) { return entry.phase == phase; });
  }
  bool trains() const { return has_phase(Phase::backward); }

  /// One after the other, in the order in which they are laid out.
  void check_arena() {
    const ArenaMap& arena = program_.arena;
    const NamedSegment segments[] = {{"step_inputs", arena.step_inputs}, {"metrics", arena.metrics},
                                     {"constants", arena.constants},     {"data", arena.data},
                                     {"parameters", arena.parameters},   {"gradients", arena.gradients},
                                     {"master", arena.master},           {"moment1", arena.moment1},
                                     {"moment2", arena.moment2},         {"slots", arena.slots},
                                     {"scratch", arena.scratch}};
    int64_t end = 0;
    for (const auto& [name, place] : segments) {
      if (std::string_view(name) == "slots") {
        if (end > arena.persistent_bytes) problems_.add("a persistent segment of the arena ends behind its region");
        end = arena.persistent_bytes;
      }
      if (place.offset < end || place.bytes < 0) {
        problems_.add(fmt::format("segment '{}' of the arena overlaps what lies before it", name));
        return;
      }
      end = place.offset + place.bytes;
    }
    if (end != arena.bytes) problems_.add("the arena does not end where its last segment does");
    if (arena.step_inputs.bytes < static_cast<int64_t>(sizeof(StepInputs)) ||
        arena.metrics.bytes < kStepMetrics * size_of(DType::f64)) {
      problems_.add("the arena has no room for the step's inputs or its metrics");
    }
  }

  /// Without products that a dump could make overflow.
  void check_batch() {
    const int64_t sequence = program_.sequence_length, cp = program_.mesh.cp, rows = program_.rows_per_micro_batch;
    if (sequence < cp || sequence % cp != 0 || rows < 1 || rows % (sequence / cp) != 0) {
      problems_.add(fmt::format("{} rows of a micro-batch are no whole sequences of {} tokens", rows, sequence));
      return;
    }
    const int64_t sequences = rows / (sequence / cp), batch = program_.global_batch;
    if (batch < 1 || divide_up(divide_up(batch, program_.mesh.dp), sequences) != program_.micro_batches) {
      problems_.add(fmt::format("a global batch of {} sequences is not {} micro-batches of {} on {} ranks", batch,
                                program_.micro_batches, sequences, program_.mesh.dp));
    }
  }

  void check_chunks() {
    for (size_t c = 0; c < program_.chunks.size(); ++c) {
      const Chunk& chunk = program_.chunks[c];
      if (chunk.layers < 1) problems_.add(fmt::format("virtual stage {} has no layer", chunk.virtual_stage));
      for (const int64_t bytes : {chunk.slot_bytes, chunk.delayed_bytes, chunk.carried_bytes}) {
        if (bytes < 0 || bytes > program_.arena.slots.bytes) {
          problems_.add(fmt::format("a slot of virtual stage {} is larger than all slots", chunk.virtual_stage));
        }
      }
      if (!has_phase(Phase::weight_gradient) && (chunk.delayed_bytes != 0 || chunk.carried_bytes != 0)) {
        problems_.add(
            fmt::format("virtual stage {} keeps bytes for a weight gradient that never runs", chunk.virtual_stage));
      }
      check_layers(chunk, c);
    }
  }

  /// Forward runs each layer of the chunk once, and no other.
  void check_layers(const Chunk& chunk, size_t index) {
    std::vector<int32_t> layers;
    const auto& lists = program_.calls[static_cast<size_t>(Phase::forward)];
    if (index < lists.size()) {
      for (const Call& call : lists[index]) {
        if (call.layer >= 0) layers.push_back(call.layer);
      }
    }
    std::sort(layers.begin(), layers.end());
    const bool all =
        std::adjacent_find(layers.begin(), layers.end()) == layers.end() &&
        static_cast<int64_t>(layers.size()) == chunk.layers &&
        (layers.empty() || (layers.front() == chunk.first_layer && layers.back() - layers.front() == chunk.layers - 1));
    if (!all) problems_.add(fmt::format("virtual stage {} does not run its layers", chunk.virtual_stage));
  }

  template <typename Is>
  bool any_op(const Is& is) const {
    return std::any_of(program_.blocks.begin(), program_.blocks.end(), [&](const Block& block) {
      return std::any_of(block.instructions.begin(), block.instructions.end(), [&](const Instruction& instruction) {
        return instruction.kind == InstructionKind::op && is(instruction.op);
      });
    });
  }

  /// Whoever feeds the Program goes by what it says it reads.
  void check_inputs() {
    const bool embeds = any_op([](OpKind kind) { return kind == OpKind::embedding; });
    const bool judges = any_op([](OpKind kind) {
      return kind == OpKind::cross_entropy || kind == OpKind::cross_entropy_stats ||
             kind == OpKind::cross_entropy_loss || kind == OpKind::moe_statistics;
    });
    if (embeds && !program_.reads_tokens) problems_.add("tokens are embedded, but the program says that it reads none");
    if (judges && !program_.reads_targets)
      problems_.add("a loss is taken, but the program says that it reads no targets");
    if (trains() && (embeds != program_.reads_tokens || judges != program_.reads_targets)) {
      problems_.add("the program says that it reads other inputs than its blocks do");
    }
    const bool fed = program_.reads_tokens || program_.reads_targets;
    if (fed && program_.data_stride_bytes > program_.arena.data.bytes / program_.micro_batches) {
      problems_.add("the arena has no room for the data of all micro-batches");
    }
  }

  /// A training step updates every parameter that this rank keeps the state of, but for frozen ones.
  void check_update() {
    int64_t updated = 0;
    for (const ScheduleEntry& entry : program_.schedule) {
      if (entry.phase != Phase::update) continue;
      for (const Call& call : calls_of(program_, entry)) {
        const Block& block = program_.blocks[static_cast<size_t>(call.block)];
        for (const Instruction& instruction : block.instructions) {
          if (instruction.kind != InstructionKind::op || instruction.op != OpKind::adamw) continue;
          updated += block.buffers[static_cast<size_t>(instruction.inputs[0])].type.elements();
        }
      }
    }
    const int64_t kept = held(program_.parameter_elements - program_.frozen_elements,
                              program_.expert_elements - program_.frozen_expert_elements, 1);
    if (updated != kept) {
      problems_.add(fmt::format("the optimizer updates {} of {} parameters of this rank", updated, kept));
    }
  }

  /// What a rank holds of these in a segment that is cut from ZeRO stage `zero` on. A mesh that shards nothing has
  /// shards of one rank.
  int64_t held(int64_t elements, int64_t expert_elements, int32_t zero) const {
    const bool cut = program_.zero_stage >= zero;
    const Mesh& mesh = program_.mesh;
    return elements / (cut ? mesh.shard : 1) + expert_elements / (cut ? mesh.expert_shard : 1);
  }

  void check_parameters() {
    const ArenaMap& arena = program_.arena;
    const Precision& precision = program_.precision;
    const auto check = [&](const char* name, const Segment& place, DType type, bool needed, int32_t zero) {
      if (place.bytes == 0 && !needed) return;
      const int64_t elements = held(program_.parameter_elements, program_.expert_elements, zero);
      if (place.bytes / size_of(type) == elements && place.bytes % size_of(type) == 0) return;
      problems_.add(fmt::format("segment '{}' of the arena does not hold {} elements", name, elements));
    };
    const bool training = trains();
    check("parameters", arena.parameters, precision.parameter, true, 3);
    check("gradients", arena.gradients, program_.accumulate_dtype, training, 2);
    check("master", arena.master, DType::f32, training && precision.master_copy, 1);
    check("moment1", arena.moment1, precision.moment, training, 1);
    check("moment2", arena.moment2, precision.moment, training, 1);
  }

  const Program& program_;
  Problems& problems_;
};

}  // namespace

void check_frame(const Program& program, Problems& problems) { FrameCheck(program, problems).run(); }

}  // namespace foresail
