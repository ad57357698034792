#include "profiler/candidates.h"

#include <algorithm>

#include <fmt/format.h>

#include "program/compile.h"

namespace foresail {
namespace {

constexpr int64_t kMostTokens = 4096;     // of a measured micro-batch: rates are flat beyond
constexpr int64_t kUsualSequence = 1024;  // for models whose positions go further
constexpr int64_t kGridLayers = 2;

Strategy strategy_of(int64_t tensor, int64_t ranks, int64_t micro_batch) {
  Strategy strategy;
  strategy.tp = tensor;
  strategy.dp = ranks / tensor;
  strategy.micro_batch = micro_batch;
  return strategy;
}

/// Appends the candidate if it is legal.
void add(std::vector<ReplayCandidate>& list, const ModelSpec& model, int64_t sequence, const Strategy& strategy,
         bool named) {
  ReplayCandidate candidate{.model = model, .job = {}, .strategy = strategy, .named = named};
  candidate.job = profiling_job(model, sequence, strategy.dp * strategy.micro_batch);
  if (legal(model, candidate.job, candidate.strategy).empty()) list.push_back(std::move(candidate));
}

void add_degrees(std::vector<ReplayCandidate>& list, const ModelSpec& model, int64_t sequence, int ranks,
                 int64_t micro_batch, bool named) {
  for (int64_t tensor = 1; tensor <= ranks; ++tensor) {
    if (ranks % tensor == 0) add(list, model, sequence, strategy_of(tensor, ranks, micro_batch), named);
  }
}

/// The same architecture with `multiply / divide` times the heads; head size and ratios stay.
ModelSpec scaled(ModelSpec model, int64_t multiply, int64_t divide) {
  const int64_t group = std::max<int64_t>(1, model.heads / std::max<int64_t>(1, model.kv_heads));
  const auto scale = [&](int64_t value, int64_t multiple) {
    return std::max(multiple, value * multiply / divide / multiple * multiple);
  };
  model.heads = scale(model.heads, group);
  model.kv_heads = model.heads / group;
  model.hidden = scale(model.hidden, 64);
  model.ffn = scale(model.ffn, 64);
  model.layers = std::min(model.layers, kGridLayers);
  model.name += fmt::format(" at {:g} times its width", static_cast<double>(multiply) / static_cast<double>(divide));
  return model;
}

/// Stands for families nobody named.
std::vector<ModelSpec> generic_models() {
  ModelSpec llama;
  llama.name = "generic-rms";
  llama.family = "llama";
  llama.layers = kGridLayers, llama.hidden = 512, llama.heads = llama.kv_heads = 8, llama.head_dim = 64;
  llama.ffn = 1408, llama.vocabulary = 4096, llama.max_positions = 512;
  ModelSpec gpt = llama;
  gpt.name = "generic-layer-norm";
  gpt.family = "gpt2";
  gpt.ffn = 2048;
  gpt.norm = NormKind::layer_norm;
  gpt.activation = ActivationKind::gelu_tanh;
  gpt.positions = PositionKind::learned;
  gpt.qkv_bias = gpt.attention_out_bias = gpt.mlp_bias = gpt.tied_embeddings = true;
  return {llama, gpt};
}

struct Scale {
  int64_t multiply, divide;
};

}  // namespace

std::string ReplayCandidate::text() const {
  return fmt::format("{}, {} layer{}, {}", model.name, model.layers, model.layers == 1 ? "" : "s",
                     short_text(strategy));
}

int64_t usual_sequence_length(const ModelSpec& model, int64_t asked) {
  if (asked > 0) return asked;
  return std::max<int64_t>(1, std::min(model.max_positions > 0 ? model.max_positions : kUsualSequence, kUsualSequence));
}

Job profiling_job(const ModelSpec& model, int64_t sequence_length, int64_t global_batch) {
  Job job;
  job.model = model.name;
  job.sequence_length = sequence_length;
  job.global_batch = global_batch;
  return job;
}

ModelSpec cut_to_depth(const ModelSpec& model, int64_t cache_bytes) {
  ModelSpec one = model, two = model;
  one.layers = 1, two.layers = 2;
  const int64_t layer_bytes = std::max<int64_t>(1, 2 * 4 * (parameter_count(two) - parameter_count(one)));
  ModelSpec cut = model;
  cut.layers = std::clamp<int64_t>(4 * cache_bytes / layer_bytes + 1, std::min<int64_t>(2, model.layers), model.layers);
  return cut;
}

std::vector<int64_t> micro_batches_for(int64_t sequence_length) {
  std::vector<int64_t> result{1};
  while (2 * result.back() * sequence_length <= kMostTokens) result.push_back(2 * result.back());
  return result;
}

std::vector<Strategy> variant_strategies(int ranks) {
  std::vector<Strategy> variants;
  for (int64_t tensor = 1; tensor <= ranks; ++tensor) {
    if (ranks % tensor != 0) continue;
    const Strategy plain = strategy_of(tensor, ranks, 1);
    if (tensor > 1) variants.push_back(plain), variants.back().sequence_parallel = true;
    if (ranks > 1) variants.push_back(plain), variants.back().schedule = ScheduleKind::zb_h1;
    if (plain.dp == 1) continue;
    for (const ContextKind kind : {ContextKind::ring, ContextKind::all_to_all}) {
      Strategy& context = variants.emplace_back(plain);
      context.cp = plain.dp, context.dp = 1, context.context = kind;
    }
    variants.push_back(plain), variants.back().zero_stage = 3;
  }
  return variants;
}

std::vector<Strategy> moving_strategies(int ranks) {
  Strategy in_v;
  in_v.schedule = ScheduleKind::zb_v, in_v.virtual_stages = 2;
  std::vector<Strategy> strategies{in_v};
  if (ranks == 1) return strategies;
  Strategy casts = strategy_of(1, ranks, 1);
  casts.reduce_dtype = DType::f64;
  strategies.push_back(casts);
  return strategies;
}

std::vector<ReplayCandidate> replay_candidates(const std::vector<ModelSpec>& models, int ranks, int64_t sequence_length,
                                               int64_t cache_bytes) {
  std::vector<ReplayCandidate> list;
  size_t most = 0;
  for (const ModelSpec& model : models) {
    most = std::max(most, micro_batches_for(usual_sequence_length(model, sequence_length)).size());
  }
  for (size_t i = 0; i < most; ++i) {
    for (const ModelSpec& model : models) {
      const int64_t sequence = usual_sequence_length(model, sequence_length);
      const auto sizes = micro_batches_for(sequence);
      if (i < sizes.size()) add_degrees(list, cut_to_depth(model, cache_bytes), sequence, ranks, sizes[i], true);
    }
  }
  for (const ModelSpec& model : models) {
    for (const Strategy& variant : variant_strategies(ranks)) {
      add(list, cut_to_depth(model, cache_bytes), usual_sequence_length(model, sequence_length), variant, true);
    }
  }
  // The grid: half, twice and four times the width, a few and many tokens.
  const std::vector<ModelSpec> relatives = models.empty() ? generic_models() : models;
  for (const auto [multiply, divide] : {Scale{2, 1}, Scale{1, 2}, Scale{3, 2}, Scale{3, 1}, Scale{1, 4}}) {
    for (const ModelSpec& model : relatives) {
      const int64_t sequence = usual_sequence_length(model, sequence_length);
      for (const int64_t micro_batch : {std::max<int64_t>(1, 512 / sequence), std::max<int64_t>(2, 2048 / sequence)}) {
        add_degrees(list, scaled(model, multiply, divide), sequence, ranks, micro_batch, false);
      }
    }
  }
  if (!models.empty()) {
    for (const ModelSpec& model : generic_models()) add_degrees(list, model, 256, ranks, 2, false);
  }
  return list;
}

}  // namespace foresail
