#include "program/compile.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "program/expert_cut.h"
#include "program/stage_compiler.h"
#include "program/unit_blocks.h"

namespace foresail {

namespace {

ShapeRequest request_of(const Job& job) {
  return {job.sequence_length, job.global_batch, precision_of(job), job.dropout, 0, job.frozen};
}

bool is_wide(DType dtype) { return dtype == DType::f32 || dtype == DType::f64; }

[[noreturn]] void refuse_dtype(const char* key, DType type, DType gradient, const Target& target) {
  throw_bad_input(
      fmt::format("{}={}", key, name_of(type)),
      fmt::format("gradients in {} cannot be converted to it on the {} back end", name_of(gradient), target.back_end),
      fmt::format("use {}=f32 or f64, or leave it out", key));
}

/// Where it runs, gradients are added and read in f32 and f64 (kernels/: OpKind::add, squared_norm, adamw); the cpu back
/// end also sends them in 16 bits, which it rounds on the way there and back (kernels/rounded_storage.h).
void require_kernels(const Strategy& strategy, DType gradient, const Target& target) {
  if (target.back_end == "catalogue") return;
  const DType kept = strategy.accumulate_dtype.value_or(gradient);
  if (kept != gradient && !(is_wide(kept) && is_wide(gradient))) {
    refuse_dtype("accumulate_dtype", kept, gradient, target);
  }
  const DType sent = strategy.reduce_dtype.value_or(kept);
  const bool is_sent = is_wide(sent) || target.back_end == "cpu";
  if (sent != kept && !(is_sent && is_wide(kept))) refuse_dtype("reduce_dtype", sent, kept, target);
}

void require_legal(const ModelSpec& model, const Job& job, const Strategy& strategy, const Target& target) {
  const std::string thing = fmt::format("strategy '{}'", to_text(strategy));
  if (const auto reasons = legal(model, job, strategy); !reasons.empty()) {
    throw_bad_input(thing, fmt::format("{}", fmt::join(reasons, "; ")),
                    "choose other degrees or let `foresail plan` choose them");
  }
  if (target.unfused_attention && strategy.cp > 1 && strategy.context == ContextKind::ring) {
    throw_bad_input(thing, "the steps of ring attention are fused, and the target has unfused attention",
                    "use context=all_to_all or a target with fused attention");
  }
  require_kernels(strategy, precision_of(job).gradient, target);
}

/// `request.global_batch` need not be the job's: the data of every Program of the set have room for that one.
Program compile_step(const ModelSpec& model, const Job& job, ShapeRequest request, const Strategy& strategy,
                     const Target& target, int stage, const WorkspaceOf& workspace_of) {
  request.largest_batch = job.global_batch;
  const StageShape shape = shape_stage(model, request, strategy, target, stage);
  Program train = compile_training(shape, target, workspace_of, stage);
  const double tokens = static_cast<double>(request.global_batch) * static_cast<double>(job.sequence_length);
  train.model_flops = training_flops_per_token(model, job.sequence_length) * tokens;
  return train;
}

/// Whatever survives a step lies at the same place in both.
void require_shared_region(const Program& one, const Program& other) {
  const auto same = [](const Segment& a, const Segment& b) { return a.offset == b.offset && a.bytes == b.bytes; };
  const ArenaMap &a = one.arena, &b = other.arena;
  const bool shared = same(a.step_inputs, b.step_inputs) && same(a.metrics, b.metrics) &&
                      same(a.constants, b.constants) && same(a.data, b.data) && same(a.parameters, b.parameters) &&
                      same(a.gradients, b.gradients) && same(a.master, b.master) && same(a.moment1, b.moment1) &&
                      same(a.moment2, b.moment2) && a.persistent_bytes == b.persistent_bytes;
  ensure(shared, "a set shares its persistent region");
}

}  // namespace

ProgramSet compile(const ModelSpec& model, const Job& job, const Strategy& strategy, const Target& target, int stage,
                   const WorkspaceOf& workspace_of) {
  ProgramSet set;
  set.train = compile_train(model, job, strategy, target, stage, workspace_of);
  ShapeRequest without_dropout = request_of(job);
  without_dropout.dropout = false;
  without_dropout.most_expert_rows = true;  // a loss that misses rows would say nothing
  const StageShape evaluation = shape_stage(model, without_dropout, strategy, target, stage);
  set.evaluate = compile_evaluation(evaluation, target, workspace_of, stage);
  for (size_t i = 0; i < job.batch_ramp.size(); ++i) {
    set.ramp.push_back(compile_ramp_stage(model, job, strategy, target, stage, i, workspace_of));
    require_shared_region(set.train, set.ramp.back());
  }
  if (can_overflow(model, job.sequence_length, strategy)) {
    const auto add = [&](const Program& program) {
      set.fallback.push_back(compile_fallback(model, job, strategy, target, stage, program.global_batch, workspace_of));
      require_shared_region(set.train, set.fallback.back());
    };
    for (const Program& program : set.ramp) add(program);
    add(set.train);
  }
  require_shared_region(set.train, set.evaluate);
  return set;
}

int64_t arena_bytes_of(const ProgramSet& set) {
  int64_t bytes = std::max(set.train.arena.bytes, set.evaluate.arena.bytes);
  for (const auto* others : {&set.ramp, &set.fallback}) {
    for (const Program& program : *others) bytes = std::max(bytes, program.arena.bytes);
  }
  return bytes;
}

Program compile_train(const ModelSpec& model, const Job& job, const Strategy& strategy, const Target& target, int stage,
                      const WorkspaceOf& workspace_of) {
  require_legal(model, job, strategy, target);
  return compile_step(model, job, request_of(job), strategy, target, stage, workspace_of);
}

Program compile_ramp_stage(const ModelSpec& model, const Job& job, const Strategy& strategy, const Target& target,
                           int stage, size_t ramp_stage, const WorkspaceOf& workspace_of) {
  require_legal(model, job, strategy, target);
  ShapeRequest request = request_of(job);
  request.global_batch = job.batch_ramp.at(ramp_stage).global_batch;
  return compile_step(model, job, request, strategy, target, stage, workspace_of);
}

bool can_overflow(const ModelSpec& model, int64_t sequence_length, const Strategy& strategy) {
  if (model.moe.experts == 0) return false;
  const int64_t rows = strategy.micro_batch * sequence_length / strategy.cp / strategy.tp;  // tp cuts the rows
  return can_overflow(rows, model.moe.experts, model.moe.experts_per_token, strategy.ep, strategy.moe_bound);
}

Program compile_fallback(const ModelSpec& model, const Job& job, const Strategy& strategy, const Target& target,
                         int stage, int64_t global_batch, const WorkspaceOf& workspace_of) {
  require_legal(model, job, strategy, target);
  ShapeRequest request = request_of(job);
  request.global_batch = global_batch;
  request.most_expert_rows = true;
  Program program = compile_step(model, job, request, strategy, target, stage, workspace_of);
  program.name = "fallback";
  return program;
}

Program compile_logits(const ModelSpec& model, int64_t sequence_length, const Precision& precision,
                       const Target& target, const WorkspaceOf& workspace_of) {
  const ShapeRequest request{sequence_length, 1, precision, false};
  const StageShape shape = shape_stage(model, request, Strategy{}, target, 0);
  return compile_forward_to_logits(shape, target, workspace_of);
}

Mesh mesh_of(const ModelSpec& model, const Strategy& strategy) {
  return Mesh::of(strategy, model.kv_heads, model.moe.experts > 0);
}

namespace {

/// Slices of the units of a stage for the rank at `place`, in a segment that is cut from ZeRO stage `zero` on; of
/// `reduced` gradients that lie in a whole segment the rank's share.
class StageSlices {
 public:
  StageSlices(const StageShape& shape, const MeshCoordinate& place) : shape_(shape), place_(place) {}

  std::vector<ParameterSlice> of(int32_t zero, bool reduced = false) {
    zero_ = zero, reduced_ = reduced;
    slices_.clear();
    if (shape_.first) append(whole(shape_.embedding), shape_.embedding_offset, -1);
    for (const ChunkShape& chunk : shape_.chunks) {
      for (int64_t i = 0; i < chunk.layers.count; ++i) {
        const int64_t layer = chunk.layers.first + i;
        const LayerKind& block = shape_.block_of(layer);
        append(whole(block), chunk.layer_offsets[static_cast<size_t>(i)], layer);
        if (block.experts.elements > 0) {
          append(experts(block), chunk.expert_offsets[static_cast<size_t>(i)], layer);
        }
      }
    }
    if (shape_.last) append(whole(shape_.head), shape_.head_offset, -1);
    return std::move(slices_);
  }

 private:
  void append(const UnitPart& unit, int64_t offset, int64_t layer) {
    const Sharing& sharing = sharing_of(shape_, unit);
    const Mesh& mesh = shape_.mesh;
    const Graph& graph = unit.kind->graph;
    std::vector<ParameterSlice> own =
        unit.of_experts
            ? expert_slices_of(graph, unit.unit(), offset, layer, shape_.cut, mesh.expert_coordinate(place_))
            : slices_of(graph, unit.unit(), offset, layer, shape_.cut, place_.tp, unit.kind->second_holder);
    const bool cut = sharing.zero_stage >= zero_, share = reduced_ && sharing.shards_state();
    if (cut || share) {
      const int32_t rank = unit.of_experts ? mesh.expert_shard_rank(place_) : mesh.shard_rank(place_);
      own = shard_slices(own, unit.unit(), offset, sharing.shard, rank,
                         cut ? SliceCoordinates::shard : SliceCoordinates::whole);
    }
    for (ParameterSlice& slice : own) {
      if (unit.of_experts) slice.element_offset += shape_.dense_held(zero_);
      slices_.push_back(std::move(slice));
    }
  }

  const StageShape& shape_;
  const MeshCoordinate& place_;
  int32_t zero_ = 0;
  bool reduced_ = false;
  std::vector<ParameterSlice> slices_;
};

}  // namespace

RankSlices rank_slices(const ModelSpec& model, const Strategy& strategy, const MeshCoordinate& place,
                       const std::vector<std::string>& frozen) {
  // Weights do not depend on the batch: one short sequence shapes the graphs.
  const ShapeRequest request{2 * strategy.cp * (strategy.sequence_parallel ? strategy.tp : 1),
                             strategy.dp * strategy.micro_batch,
                             {},
                             false,
                             0,
                             frozen};
  const StageShape shape = shape_stage(model, request, strategy, {}, place.pp);
  StageSlices slices(shape, place);
  return {slices.of(3), slices.of(2, true), slices.of(1)};
}

std::map<std::string, int64_t> used_workspaces(const Program& program) {
  std::map<std::string, int64_t> used;
  for (const Block& block : program.blocks) {
    for (const Instruction& instruction : block.instructions) {
      if (instruction.kind != InstructionKind::op || instruction.workspace < 0) continue;
      used[signature(op_instance(block, instruction))] = block.buffers[instruction.workspace].type.bytes();
    }
  }
  return used;
}

}  // namespace foresail
