#include "program/compile.h"

#include <fmt/format.h>

#include "core/error.h"
#include "program/stage_compiler.h"

namespace foresail {

namespace {

ShapeRequest request_of(const Job& job) {
  return {job.sequence_length, job.global_batch, precision_of(job), job.dropout};
}

/// The back ends that execute here convert between f32 and f64 only, and add and read gradients in these (kernels/:
/// OpKind::cast, add, squared_norm, adamw).
void require_kernels(const std::string& key, const std::optional<DType>& type, DType gradient, const Target& target) {
  if (!type || *type == gradient || target.back_end == "catalogue") return;
  const auto converts = [](DType dtype) { return dtype == DType::f32 || dtype == DType::f64; };
  if (converts(*type) && converts(gradient)) return;
  throw_bad_input(
      fmt::format("{}={}", key, name_of(*type)),
      fmt::format("gradients in {} cannot be converted to it on the {} back end", name_of(gradient), target.back_end),
      fmt::format("use {}=f32 or f64, or leave it out", key));
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
  const DType gradient = precision_of(job).gradient;
  require_kernels("accumulate_dtype", strategy.accumulate_dtype, gradient, target);
  require_kernels("reduce_dtype", strategy.reduce_dtype, strategy.accumulate_dtype.value_or(gradient), target);
}

}  // namespace

ProgramSet compile(const ModelSpec& model, const Job& job, const Strategy& strategy, const Target& target, int stage,
                   const WorkspaceOf& workspace_of) {
  ProgramSet set;
  set.train = compile_train(model, job, strategy, target, stage, workspace_of);
  ShapeRequest without_dropout = request_of(job);
  without_dropout.dropout = false;
  const StageShape evaluation = shape_stage(model, without_dropout, strategy, target, stage);
  set.evaluate = compile_evaluation(evaluation, target, workspace_of, stage);
  ensure(set.evaluate.arena.persistent_bytes == set.train.arena.persistent_bytes, "a set shares its persistent region");
  return set;
}

Program compile_train(const ModelSpec& model, const Job& job, const Strategy& strategy, const Target& target, int stage,
                      const WorkspaceOf& workspace_of) {
  require_legal(model, job, strategy, target);
  const StageShape shape = shape_stage(model, request_of(job), strategy, target, stage);
  Program train = compile_training(shape, target, workspace_of, stage);
  const double tokens = static_cast<double>(job.global_batch) * static_cast<double>(job.sequence_length);
  train.model_flops = training_flops_per_token(model, job.sequence_length) * tokens;
  return train;
}

Program compile_logits(const ModelSpec& model, int64_t sequence_length, const Precision& precision,
                       const Target& target, const WorkspaceOf& workspace_of) {
  const ShapeRequest request{sequence_length, 1, precision, false};
  const StageShape shape = shape_stage(model, request, Strategy{}, target, 0);
  return compile_forward_to_logits(shape, target, workspace_of);
}

Mesh mesh_of(const ModelSpec& model, const Strategy& strategy) { return Mesh::of(strategy, model.kv_heads); }

namespace {

/// Slices of every unit of a stage, cut unit by unit as `cut` says.
template <typename CutUnit>
std::vector<ParameterSlice> stage_slices(const StageShape& shape, int tensor_rank, const CutUnit& cut) {
  std::vector<ParameterSlice> slices;
  const auto append = [&](const LayerKind& kind, int64_t offset, int64_t layer) {
    const auto whole = slices_of(kind.graph, kind.unit, offset, layer, shape.cut, tensor_rank, kind.second_holder);
    const auto more = cut(whole, kind.unit, offset);
    slices.insert(slices.end(), more.begin(), more.end());
  };
  if (shape.first) append(shape.embedding, shape.embedding_offset, -1);
  for (size_t c = 0; c < shape.chunks.size(); ++c) {
    for (int64_t i = 0; i < shape.chunks[c].layers.count; ++i) {
      append(shape.block, shape.layer_offset(c, i), shape.chunks[c].layers.first + i);
    }
  }
  if (shape.last) append(shape.head, shape.head_offset, -1);
  return slices;
}

}  // namespace

RankSlices rank_slices(const ModelSpec& model, const Strategy& strategy, const MeshCoordinate& place) {
  // Weights do not depend on the batch: one short sequence shapes the graphs.
  const ShapeRequest request{
      2 * strategy.cp * (strategy.sequence_parallel ? strategy.tp : 1), strategy.dp * strategy.micro_batch, {}, false};
  const StageShape shape = shape_stage(model, request, strategy, {}, place.pp);
  const auto slices = [&](bool sharded, SliceCoordinates coordinates) {
    return stage_slices(shape, place.tp, [&](const auto& whole, const Unit& unit, int64_t offset) {
      if (!sharded) return whole;
      return shard_slices(whole, unit, offset, shape.mesh.shard, shape.mesh.shard_rank(place), coordinates);
    });
  };
  RankSlices result;
  result.parameters = slices(shape.shards_parameters(), SliceCoordinates::shard);
  result.gradients =
      slices(shape.shards_state(), shape.shards_gradients() ? SliceCoordinates::shard : SliceCoordinates::whole);
  result.state = slices(shape.shards_state(), SliceCoordinates::shard);
  return result;
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
