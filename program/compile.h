// ModelSpec + Job + Strategy + Target -> one Program per pipeline stage (the rank classes of a homogeneous mesh), and
// whether a strategy is legal at all.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "models/model_spec.h"
#include "program/lower.h"
#include "program/program.h"
#include "spec/job.h"
#include "spec/strategy.h"
#include "spec/target.h"

namespace foresail {

/// Why a strategy cannot run: short stable texts, empty if it can. One function for search, simulate and train.
std::vector<std::string> legal(const ModelSpec& model, const Job& job, const Strategy& strategy);

/// Every Program of a run on one stage; all share the persistent region at equal offsets.
struct ProgramSet {
  Program train;
  Program evaluate;           ///< forward and loss only, same mesh and micro-batches
  std::vector<Program> ramp;  ///< train Programs of the batch ramp's stages: fewer micro-batches
  /// The same steps with room for whatever routers do, in the order of `ramp`, then that of `train`: what repeats a step
  /// whose rows for experts found no room. Empty if that cannot happen.
  std::vector<Program> fallback;
};
/// Of the arena that holds each of them.
int64_t arena_bytes_of(const ProgramSet& set);

/// Compiles one stage. Workspace comes from the target's table, for operators that it does not list from `workspace_of`
/// (none: 0 bytes). Throws bad_input with the reasons of `legal` if there are any.
ProgramSet compile(const ModelSpec& model, const Job& job, const Strategy& strategy, const Target& target, int stage,
                   const WorkspaceOf& workspace_of = {});

/// The train Program alone: what a search asks for, many times.
Program compile_train(const ModelSpec& model, const Job& job, const Strategy& strategy, const Target& target, int stage,
                      const WorkspaceOf& workspace_of = {});

/// The train Program of a stage of the job's batch ramp.
Program compile_ramp_stage(const ModelSpec& model, const Job& job, const Strategy& strategy, const Target& target,
                           int stage, size_t ramp_stage, const WorkspaceOf& workspace_of = {});

/// Whether routers can send more rows to a rank than Strategy::moe_bound leaves room for.
bool can_overflow(const ModelSpec& model, int64_t sequence_length, const Strategy& strategy);

/// The train Program with room for whatever routers do, for the job's batch or one of its ramp's.
Program compile_fallback(const ModelSpec& model, const Job& job, const Strategy& strategy, const Target& target,
                         int stage, int64_t global_batch, const WorkspaceOf& workspace_of = {});

/// Forward pass of one sequence up to the logits (pp = tp = 1): for `sample`. The buffer named "logits" in the last
/// block holds [S, V].
Program compile_logits(const ModelSpec& model, int64_t sequence_length, const Precision& precision,
                       const Target& target, const WorkspaceOf& workspace_of = {});

/// Workspace of every operator of a Program that has some, by signature: what a plan's Target must list so that the
/// same Program is compiled anywhere.
std::map<std::string, int64_t> used_workspaces(const Program& program);

/// What a rank holds of every logical tensor, in the coordinates of each kind of segment. Without ZeRO the three lists
/// are equal. ZeRO-1 cuts the state and, once reduced, the gradients (their slices lie inside the whole segment); ZeRO-2
/// keeps only a shard of the gradients; ZeRO-3 also of the parameters. Order: embedding, layers by chunk, head.
struct RankSlices {
  std::vector<ParameterSlice> parameters;
  std::vector<ParameterSlice> gradients;  ///< after reduction
  std::vector<ParameterSlice> state;      ///< master copy and both moments
};
/// Frozen weights (the job's patterns) have ranges of their own.
RankSlices rank_slices(const ModelSpec& model, const Strategy& strategy, const MeshCoordinate& place,
                       const std::vector<std::string>& frozen = {});

/// The mesh of a strategy for this model: Mesh::of with its KV heads.
Mesh mesh_of(const ModelSpec& model, const Strategy& strategy);

/// First layer and number of layers.
struct StageLayers {
  int64_t first = 0, count = 0;
};
/// By virtual stage: Strategy::stage_layers, or sizes that differ by at most one, larger ones first.
std::vector<StageLayers> stage_layers(int64_t layers, const Strategy& strategy);

}  // namespace foresail
