// Which strategies a model and a job admit.
#include <fmt/format.h>

#include "core/error.h"
#include "program/compile.h"

namespace foresail {
namespace {

void parts_not_built(const Strategy& strategy, std::vector<std::string>& reasons) {
  if (strategy.cp != 1) reasons.emplace_back("context parallelism (cp > 1) is not built yet");
  if (strategy.ep != 1 || strategy.etp != 1) reasons.emplace_back("expert parallelism (ep, etp > 1) is not built yet");
  if (strategy.virtual_stages != 1) reasons.emplace_back("interleaving (virtual_stages > 1) is not built yet");
  if (strategy.zero_stage != 0) reasons.emplace_back("ZeRO (zero_stage > 0) is not built yet");
  if (strategy.sequence_parallel) reasons.emplace_back("sequence parallelism is not built yet");
}

void tensor_parallel_divides(const ModelSpec& model, const Strategy& strategy, std::vector<std::string>& reasons) {
  if (model.heads % strategy.tp != 0) {
    reasons.push_back(fmt::format("tp = {} does not divide the {} attention heads", strategy.tp, model.heads));
  } else if (model.kv_heads % strategy.tp != 0) {
    reasons.push_back(fmt::format("tp = {} does not divide the {} KV heads (their replication is not built yet)",
                                  strategy.tp, model.kv_heads));
  }
  if (model.ffn % strategy.tp != 0) {
    reasons.push_back(
        fmt::format("tp = {} does not divide the FFN width {} (padding is not built yet)", strategy.tp, model.ffn));
  }
  if (strategy.tp > model.vocabulary) reasons.emplace_back("tp exceeds the vocabulary");
}

}  // namespace

std::vector<std::string> legal(const ModelSpec& model, const Job& job, const Strategy& strategy) {
  std::vector<std::string> reasons;
  for (const int64_t degree : {strategy.dp, strategy.tp, strategy.pp, strategy.micro_batch}) {
    if (degree < 1) return {"every degree and the micro-batch are at least 1"};
  }
  parts_not_built(strategy, reasons);
  tensor_parallel_divides(model, strategy, reasons);
  if (strategy.pp > model.layers) {
    reasons.push_back(fmt::format("pp = {} exceeds the {} layers", strategy.pp, model.layers));
  }
  if (job.sequence_length < 1) reasons.emplace_back("the sequence length is not positive");
  if (model.positions == PositionKind::learned && job.sequence_length > model.max_positions) {
    reasons.push_back(
        fmt::format("sequence length {} exceeds the {} learned positions", job.sequence_length, model.max_positions));
  }
  if (job.global_batch < 1 || job.global_batch % (strategy.dp * strategy.micro_batch) != 0) {
    reasons.push_back(
        fmt::format("global batch {} is not a multiple of dp x micro_batch = {} (ragged batches are not "
                    "built yet)",
                    job.global_batch, strategy.dp * strategy.micro_batch));
  }
  return reasons;
}

std::vector<StageLayers> stage_layers(int64_t layers, int64_t stages) {
  ensure(stages >= 1 && stages <= layers, "every stage has at least one layer");
  std::vector<StageLayers> result;
  int64_t first = 0;
  for (int64_t stage = 0; stage < stages; ++stage) {
    const int64_t count = layers / stages + (stage < layers % stages ? 1 : 0);
    result.push_back({first, count});
    first += count;
  }
  return result;
}

}  // namespace foresail
