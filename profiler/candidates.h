// Which Programs are worth replaying: the named models over the legal tensor-parallel degrees and micro-batches, cut to a
// few layers, and scaled relatives of them, so that other shapes can be interpolated.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model_spec.h"
#include "program/program.h"
#include "spec/job.h"
#include "spec/strategy.h"
#include "spec/target.h"

namespace foresail {

/// One reduced training step to replay.
struct ReplayCandidate {
  ModelSpec model;
  Job job;                   ///< global_batch is one micro-batch per data-parallel rank
  Strategy strategy;         ///< pp = 1: stages run the same blocks
  bool named = false;        ///< of a model the user named; otherwise of the grid
  std::string text() const;  ///< "llama-11m, 2 layers, dp=1 tp=2 pp=1 micro_batch=4 recompute=none"
};

/// What a model is planned for unless the user says otherwise.
int64_t usual_sequence_length(const ModelSpec& model, int64_t asked);

/// A job that trains `model` in fp32 at this length.
Job profiling_job(const ModelSpec& model, int64_t sequence_length, int64_t global_batch);

/// Fewest layers whose parameters and gradients overflow `cache_bytes` four times, at least 2: enough for a layer to find
/// its weights as cold as in the whole model.
ModelSpec cut_to_depth(const ModelSpec& model, int64_t cache_bytes);

/// Strategies of `ranks` ranks beside plain tensor and data parallelism whose Programs hold operators, shapes or collectives
/// that no plain one has: sequence parallelism, split backward, both kinds of context
/// parallelism, ZeRO-3.
std::vector<Strategy> variant_strategies(int ranks);

/// Strategies whose Programs differ from those above only by kinds that move bytes (copies of a stage to itself, casts around
/// a reduction): the kinds are measured alone, steps of them are not worth a replay.
std::vector<Strategy> moving_strategies(int ranks);

/// For `ranks` ranks. Named models first, cheap micro-batches before dear ones, degrees interleaved, then the variants at
/// the least micro-batch; then the grid.
/// `sequence_length` 0: the usual one of each model.
std::vector<ReplayCandidate> replay_candidates(const std::vector<ModelSpec>& models, int ranks, int64_t sequence_length,
                                               int64_t cache_bytes);

/// Micro-batches worth measuring at this sequence length: 1, 2, 4, ... up to 4096 tokens, at least one.
std::vector<int64_t> micro_batches_for(int64_t sequence_length);

}  // namespace foresail
