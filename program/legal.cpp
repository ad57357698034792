// Which strategies a model and a job admit.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/round_up.h"
#include "program/compile.h"
#include "program/frozen.h"
#include "program/schedule.h"
#include "spec/batch_ramp.h"

namespace foresail {
namespace {

using Reasons = std::vector<std::string>;

void experts_divide(const ModelSpec& model, const Strategy& strategy, Reasons& reasons) {
  const ExpertSpec& moe = model.moe;
  if (moe.experts == 0) {
    if (strategy.ep != 1 || strategy.etp != 1) reasons.emplace_back("ep or etp is given, but the model has no experts");
    return;
  }
  if (moe.experts % strategy.ep != 0) {
    reasons.push_back(fmt::format("ep = {} does not divide the {} experts", strategy.ep, moe.experts));
  }
  const int64_t ranks = strategy.dp * strategy.cp * strategy.tp;
  if (ranks % (strategy.ep * strategy.etp) != 0) {
    reasons.push_back(fmt::format("ep x etp = {} does not divide the dp x cp x tp = {} ranks of a stage",
                                  strategy.ep * strategy.etp, ranks));
  }
  if (strategy.etp > moe.expert_ffn) reasons.emplace_back("etp exceeds the width of an expert");
  if (strategy.tp > 1 && !strategy.sequence_parallel) {
    reasons.emplace_back(
        "a model with experts and tp > 1 needs sequence_parallel=true, so that no row is routed twice");
  }
  if (moe.shared_ffn > 0 && strategy.tp > moe.shared_ffn)
    reasons.emplace_back("tp exceeds the width of shared experts");
}

void tensor_parallel_divides(const ModelSpec& model, const Strategy& strategy, Reasons& reasons) {
  if (model.heads % strategy.tp != 0) {
    reasons.push_back(fmt::format("tp = {} does not divide the {} attention heads", strategy.tp, model.heads));
  } else if (strategy.tp > model.kv_heads ? strategy.tp % model.kv_heads != 0 : model.kv_heads % strategy.tp != 0) {
    reasons.push_back(fmt::format("of tp = {} and {} KV heads neither divides the other", strategy.tp, model.kv_heads));
  }
  const bool has_dense_layers = model.moe.experts == 0 || model.moe.first_dense_layers > 0;
  if (has_dense_layers && strategy.tp > model.ffn) reasons.emplace_back("tp exceeds the FFN width");
  if (strategy.tp > model.vocabulary) reasons.emplace_back("tp exceeds the vocabulary");
}

void sequence_is_cut_evenly(const ModelSpec& model, const Job& job, const Strategy& strategy, Reasons& reasons) {
  if (strategy.cp > 1 && job.sequence_length % (2 * strategy.cp) != 0) {
    reasons.push_back(
        fmt::format("sequence length {} is not a multiple of 2 x cp = {}", job.sequence_length, 2 * strategy.cp));
  }
  const int64_t rows = strategy.micro_batch * job.sequence_length / strategy.cp;
  if (strategy.sequence_parallel && rows % strategy.tp != 0) {
    reasons.push_back(fmt::format(
        "sequence parallelism: tp = {} does not divide the {} tokens of a micro-batch on a rank", strategy.tp, rows));
  }
  if (strategy.cp == 1 || strategy.context == ContextKind::ring) return;
  const int64_t heads = model.heads / std::min(strategy.tp, model.heads);
  const int64_t kv_heads = std::max<int64_t>(1, model.kv_heads / strategy.tp);
  if (heads % strategy.cp != 0 || kv_heads % strategy.cp != 0) {
    reasons.push_back(
        fmt::format("all-to-all context parallelism: cp = {} does not divide the {} heads and {} KV heads "
                    "of a tensor rank; use context=ring",
                    strategy.cp, heads, kv_heads));
  }
}

void zero_groups_fit(const Strategy& strategy, Reasons& reasons) {
  if (strategy.zero_group != 0 && strategy.zero_stage == 0) {
    reasons.emplace_back("zero_group is given, but zero_stage is 0");
  }
  if (strategy.data_ranks() % strategy.shard_ranks() != 0) {
    reasons.push_back(fmt::format("zero_group = {} does not divide the dp x cp = {} data ranks", strategy.zero_group,
                                  strategy.data_ranks()));
  }
  if (strategy.bucket_bytes > 0 && !strategy.overlap) {
    reasons.emplace_back("bucket_bytes is given, but overlap is off");
  }
}

/// The job's and those of its batch ramp.
std::vector<int64_t> global_batches(const Job& job) {
  std::vector<int64_t> batches = {job.global_batch};
  for (const BatchRampStage& stage : job.batch_ramp) batches.push_back(stage.global_batch);
  return batches;
}

void batches_divide(const Job& job, const Strategy& strategy, Reasons& reasons) {
  if (const std::string problem = batch_ramp_problem(job); !problem.empty()) {
    reasons.push_back("the batch ramp " + problem);
  }
  const int64_t round = strategy.dp * strategy.micro_batch;
  for (const int64_t batch : global_batches(job)) {
    if (batch >= 1 && (batch % round == 0 || strategy.ragged_batch)) continue;
    reasons.push_back(
        fmt::format("global batch {} is not a multiple of dp x micro_batch = {} (ragged_batch=true masks "
                    "the rest)",
                    batch, round));
  }
}

void pipeline_fits(const ModelSpec& model, const Job& job, const Strategy& strategy, Reasons& reasons) {
  const int64_t chunks = strategy.virtual_stages;
  const int64_t round = strategy.dp * strategy.micro_batch;
  for (const int64_t batch : global_batches(job)) {
    const int64_t micro_batches = divide_up(std::max<int64_t>(batch, 1), round);
    if (std::string why; !schedule_fits(strategy, micro_batches, &why)) {
      reasons.push_back(why);
      break;  // said once
    }
  }
  const int64_t stages = strategy.pp * chunks;
  if (stages > model.layers) {
    reasons.push_back(fmt::format("pp x virtual_stages = {} exceeds the {} layers", stages, model.layers));
  }
  const auto& given = strategy.stage_layers;
  if (given.empty()) return;
  if (static_cast<int64_t>(given.size()) != stages ||
      std::accumulate(given.begin(), given.end(), int64_t{0}) != model.layers) {
    reasons.push_back(
        fmt::format("stage_layers does not give {} virtual stages that add up to {} layers", stages, model.layers));
  }
}

void recompute_layers_exist(const ModelSpec& model, const Strategy& strategy, Reasons& reasons) {
  for (const RecomputeRule& rule : strategy.recompute_layers) {
    if (rule.last < model.layers) continue;
    reasons.push_back(fmt::format("recompute_layers names layer {} of {}", rule.last, model.layers));
    return;
  }
}

}  // namespace

std::vector<std::string> legal(const ModelSpec& model, const Job& job, const Strategy& strategy) {
  std::vector<std::string> reasons;
  for (const int64_t degree : {strategy.dp, strategy.tp, strategy.pp, strategy.cp, strategy.ep, strategy.etp,
                               strategy.micro_batch, strategy.virtual_stages}) {
    if (degree < 1) return {"every degree, virtual_stages and the micro-batch are at least 1"};
  }
  experts_divide(model, strategy, reasons);
  tensor_parallel_divides(model, strategy, reasons);
  zero_groups_fit(strategy, reasons);
  pipeline_fits(model, job, strategy, reasons);
  recompute_layers_exist(model, strategy, reasons);
  for (std::string& problem : frozen_problems(model, job.frozen)) reasons.push_back(std::move(problem));
  if (job.sequence_length < 1) {
    reasons.emplace_back("the sequence length is not positive");
  } else {
    sequence_is_cut_evenly(model, job, strategy, reasons);
  }
  if (model.positions == PositionKind::learned && job.sequence_length > model.max_positions) {
    reasons.push_back(
        fmt::format("sequence length {} exceeds the {} learned positions", job.sequence_length, model.max_positions));
  }
  batches_divide(job, strategy, reasons);
  return reasons;
}

std::vector<StageLayers> stage_layers(int64_t layers, const Strategy& strategy) {
  const int64_t stages = strategy.pp * strategy.virtual_stages;
  ensure(stages >= 1 && stages <= layers, "every virtual stage has at least one layer");
  std::vector<StageLayers> result;
  int64_t first = 0;
  for (int64_t stage = 0; stage < stages; ++stage) {
    const int64_t even = layers / stages + (stage < layers % stages ? 1 : 0);
    const int64_t count = strategy.stage_layers.empty() ? even : strategy.stage_layers.at(static_cast<size_t>(stage));
    result.push_back({first, count});
    first += count;
  }
  return result;
}

}  // namespace foresail
