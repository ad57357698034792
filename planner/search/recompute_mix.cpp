#include "planner/search/recompute_mix.h"

#include <algorithm>

#include "core/error.h"
#include "planner/search/space.h"
#include "planner/simulator/priced_program.h"
#include "program/layer_blocks.h"

namespace foresail {
namespace {

/// Compilations per stage: the first limit misses the arena by the temporaries alone, each further one corrects it.
constexpr int kTries = 4;
/// Partial choices that the solver carries on per layer. Its rounded relaxation is within one layer's step of the best
/// already, and a search asks it for thousands of stages.
constexpr size_t kPartialChoices = 256;

/// What each forward node of a layer takes: the block that runs them has one instruction per node, in order.
std::vector<double> forward_seconds(const Program& program, const CostModel& costs, int64_t devices_per_node) {
  const auto block = std::find_if(program.blocks.begin(), program.blocks.end(),
                                  [](const Block& candidate) { return candidate.name == "block.forward"; });
  ensure(block != program.blocks.end(), "every stage has a layer");
  std::vector<double> seconds;
  for (const Cost& cost : price_block(program, *block, costs, devices_per_node)) seconds.push_back(cost.seconds);
  return seconds;
}

std::vector<StageDemand> demands_of(const Program& program, const RecomputeFront& front) {
  std::vector<StageDemand> demands;
  for (const Chunk& chunk : program.chunks) demands.push_back({&front, chunk.layers, chunk.slots});
  return demands;
}

bool same_choice(const RecomputeRule& a, const RecomputeRule& b) {
  return a.preset == b.preset && a.tensors == b.tensors;
}

bool in_order(const RecomputeRule& a, const RecomputeRule& b) { return a.first < b.first; }

}  // namespace

/// The front depends on the layer's shapes and on where its collectives run, so not on schedule or ZeRO.
const RecomputeMixer::PricedLayer& RecomputeMixer::layer_of(const Strategy& strategy, const Program& program) {
  Strategy shapes = plain_variant(strategy);
  shapes.sequence_parallel = strategy.sequence_parallel;
  const auto [at, is_new] = layers_.try_emplace(to_text(shapes));
  PricedLayer& priced = at->second;
  if (!is_new) return priced;
  const ShapeRequest request{job_.sequence_length, job_.global_batch, precision_of(job_), job_.dropout};
  const StageShape shape = shape_stage(model_, request, strategy, evaluator_.target(), program.stage);
  priced.layer = differentiated_layer(shape, shape.blocks[0]);
  BlockCosts costs;
  costs.node_seconds = forward_seconds(program, evaluator_.costs(), machine_.devices_per_node);
  ensure(costs.node_seconds.size() == static_cast<size_t>(priced.layer.forward_nodes), "a node is an instruction");
  costs.tensor_bytes = aligned_tensor_bytes(priced.layer.graph, shape.alignment);
  priced.front = recompute_front(priced.layer, costs);
  const std::set<int> dropped = dropped_tensors(priced.layer, Recompute::full, {});
  priced.full_bytes = cost_of(replay_plan(priced.layer, dropped), costs).kept_bytes;
  return priced;
}

StageMix RecomputeMixer::mix(const Strategy& strategy, const Program& full, int64_t arena_bytes) {
  ensure(full.arena.bytes <= arena_bytes, "full recompute fits");
  const PricedLayer& priced = layer_of(strategy, full);
  const std::vector<StageDemand> demands = demands_of(full, priced.front);
  StageMix best;
  int64_t limit = arena_bytes - full.arena.bytes;  // for what is kept beyond full recompute
  for (const StageDemand& demand : demands) limit += demand.layers * demand.in_flight * priced.full_bytes;
  for (int i = 0; i < kTries; ++i) {
    const std::optional<StageChoice> choice = solve_stage(demands, limit, kPartialChoices);
    if (!choice) break;
    std::vector<RecomputeRule> rules;
    for (size_t c = 0; c < demands.size(); ++c) {
      const auto more = rules_of(priced.layer, priced.front, choice->layers[c], full.chunks[c].first_layer);
      rules.insert(rules.end(), more.begin(), more.end());
    }
    std::sort(rules.begin(), rules.end(), in_order);
    if (rules == best.rules) break;
    Strategy tried = strategy;
    tried.recompute = Recompute::none;
    tried.recompute_layers = rules;
    Program program = evaluator_.compile_stage(tried, full.stage);
    const int64_t left = arena_bytes - program.arena.bytes;
    if (left < 0 && !best.rules.empty()) break;  // grew too far
    if (left >= 0) best = {std::move(rules), std::move(program)};
    limit = choice->kept_bytes + left;
  }
  if (!best.rules.empty()) return best;
  for (const Chunk& chunk : full.chunks) {
    best.rules.push_back({chunk.first_layer, chunk.first_layer + chunk.layers - 1, Recompute::full, {}});
  }
  std::sort(best.rules.begin(), best.rules.end(), in_order);
  best.program = full;
  return best;
}

std::vector<RecomputeRule> joined(std::vector<RecomputeRule> rules) {
  std::sort(rules.begin(), rules.end(), in_order);
  std::vector<RecomputeRule> result;
  for (RecomputeRule& rule : rules) {
    if (rule.preset == Recompute::none && rule.tensors.empty()) continue;
    const bool joins = !result.empty() && result.back().last + 1 == rule.first && same_choice(result.back(), rule);
    if (joins) {
      result.back().last = rule.last;
    } else {
      result.push_back(std::move(rule));
    }
  }
  return result;
}

bool is_preset(const std::vector<RecomputeRule>& rules, int64_t layers) {
  if (rules.empty()) return true;
  const RecomputeRule& only = rules.front();
  return rules.size() == 1 && only.tensors.empty() && only.first == 0 && only.last == layers - 1;
}

}  // namespace foresail
