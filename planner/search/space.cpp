#include "planner/search/space.h"

#include <algorithm>

#include "planner/simulator/priced_program.h"
#include "program/compile.h"

namespace foresail {
namespace {

bool allowed(const StrategyText& fixed, const Strategy& strategy) {
  const Strategy& wanted = fixed.strategy;
  const auto ok = [&](const char* key, auto have, auto want) { return !fixed.names(key) || have == want; };
  return ok("dp", strategy.dp, wanted.dp) && ok("tp", strategy.tp, wanted.tp) && ok("pp", strategy.pp, wanted.pp) &&
         ok("micro_batch", strategy.micro_batch, wanted.micro_batch) &&
         ok("recompute", strategy.recompute, wanted.recompute);
}

/// Keys that the search does not vary keep the fixed value, so that `legal` can say what is not built.
Strategy base_strategy(const StrategyText& fixed) {
  Strategy strategy = fixed.strategy;
  if (!fixed.names("recompute")) strategy.recompute = Recompute::none;
  return strategy;
}

void add(const SearchRequest& request, const Strategy& strategy, Space& space) {
  if (!allowed(request.fixed, strategy)) return;
  const auto reasons = legal(request.model, request.job, strategy);
  if (reasons.empty()) {
    space.strategies.push_back(strategy);
  } else {
    for (const std::string& reason : reasons) ++space.illegal[reason];
  }
}

}  // namespace

std::vector<int64_t> divisors(int64_t value) {
  std::vector<int64_t> small, large;
  for (int64_t d = 1; d * d <= value; ++d) {
    if (value % d != 0) continue;
    small.push_back(d);
    if (d != value / d) large.push_back(value / d);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

Space space_of(const SearchRequest& request, int64_t devices) {
  Space space;
  Strategy strategy = base_strategy(request.fixed);
  for (const int64_t tp : divisors(devices)) {
    for (const int64_t pp : divisors(devices / tp)) {
      strategy.tp = tp, strategy.pp = pp, strategy.dp = devices / tp / pp;
      // A batch that dp does not divide is one combination, refused by `legal` with its reason.
      const bool divides = request.job.global_batch % strategy.dp == 0;
      std::vector<int64_t> micro_batches =
          divides ? divisors(request.job.global_batch / strategy.dp) : std::vector<int64_t>{1};
      if (request.fixed.names("micro_batch")) micro_batches = {request.fixed.strategy.micro_batch};
      for (const int64_t micro_batch : micro_batches) {
        strategy.micro_batch = micro_batch;
        for (const Recompute recompute : {Recompute::none, Recompute::full}) {
          strategy.recompute = recompute;
          add(request, strategy, space);
        }
      }
    }
  }
  return space;
}

int64_t MemoryBound::bytes(const Strategy& strategy) {
  const Precision precision = precision_of(job_);
  const auto [at, is_new] = state_bytes_.try_emplace({strategy.tp, strategy.pp}, 0);
  if (is_new) {
    int64_t elements = 0;
    for (const ParameterSlice& slice : parameter_slices(model_, strategy, 0, 0)) elements += slice.elements();
    const int64_t per_element = size_of(precision.parameter) + size_of(precision.gradient) +
                                2 * size_of(precision.moment) + (precision.master_copy ? size_of(DType::f32) : 0);
    at->second = elements * per_element;
  }
  const int64_t micro_batches = job_.global_batch / (strategy.dp * strategy.micro_batch);
  const int64_t layers = stage_layers(model_.layers, strategy.pp)[0].count;
  const int64_t layer_input =
      strategy.micro_batch * job_.sequence_length * model_.hidden * size_of(precision.activation);
  return at->second + std::min(micro_batches, strategy.pp) * layers * layer_input;
}

double busy_seconds(const Program& program, const CostModel& costs, int64_t devices_per_node) {
  const PricedProgram priced = price(program, costs, devices_per_node, true);
  const std::vector<int64_t> executions = block_executions(program);
  double seconds = 0;
  for (size_t b = 0; b < priced.blocks.size(); ++b) {
    double once = 0;
    for (const PricedStep& step : priced.blocks[b].steps) {
      if (step.queue == Queue::compute) once += step.seconds;
    }
    seconds += once * static_cast<double>(executions[b]);
  }
  return seconds;
}

}  // namespace foresail
