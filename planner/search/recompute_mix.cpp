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

/// What each forward node of a kind of block takes: the block that runs them has one instruction per node, in order.
std::vector<double> forward_seconds(const Program& program, const std::string& kind, const CostModel& costs,
                                    int64_t devices_per_node) {
  const auto block = std::find_if(program.blocks.begin(), program.blocks.end(),
                                  [&](const Block& candidate) { return candidate.name == kind + ".forward"; });
  ensure(block != program.blocks.end(), "every kind of layer of a stage has a block");
  std::vector<double> seconds;
  for (const Cost& cost : price_block(program, *block, costs, devices_per_node)) seconds.push_back(cost.seconds);
  return seconds;
}

/// Layers of one kind that follow each other in a chunk.
struct Run {
  BlockKind kind{};
  int64_t first = 0, layers = 0, in_flight = 1;
};

std::vector<Run> runs_of(const ModelSpec& model, const Program& program) {
  std::vector<Run> runs;
  for (const Chunk& chunk : program.chunks) {
    for (int64_t layer = chunk.first_layer; layer < chunk.first_layer + chunk.layers; ++layer) {
      const BlockKind kind = is_expert_layer(model, layer) ? BlockKind::expert : BlockKind::dense;
      if (layer == chunk.first_layer || runs.back().kind != kind) runs.push_back({kind, layer, 0, chunk.slots});
      ++runs.back().layers;
    }
  }
  return runs;
}

bool same_choice(const RecomputeRule& a, const RecomputeRule& b) {
  return a.preset == b.preset && a.tensors == b.tensors;
}

bool in_order(const RecomputeRule& a, const RecomputeRule& b) { return a.first < b.first; }

}  // namespace

/// The front depends on the layer's shapes and on where its collectives run, so not on schedule or ZeRO. Stages differ in
/// the kinds of layers that they have.
const RecomputeMixer::PricedLayers& RecomputeMixer::layers_of(const Strategy& strategy, const Program& program) {
  Strategy shapes = plain_variant(strategy);
  shapes.sequence_parallel = strategy.sequence_parallel;
  PricedLayers& priced = layers_[to_text(shapes)];
  const ShapeRequest request{job_.sequence_length, job_.global_batch, precision_of(job_), job_.dropout, 0, job_.frozen};
  std::optional<StageShape> shape;
  for (const Run& run : runs_of(model_, program)) {
    PricedLayer& layer = priced[static_cast<size_t>(run.kind)];
    if (!layer.front.points.empty()) continue;
    if (!shape) shape = shape_stage(model_, request, strategy, evaluator_.target(), program.stage);
    const LayerKind& kind = shape->block_of(run.first);
    layer.layer = differentiated_layer(*shape, kind);
    BlockCosts costs;
    costs.node_seconds = forward_seconds(program, kind.graph.name, evaluator_.costs(), machine_.devices_per_node);
    ensure(costs.node_seconds.size() == static_cast<size_t>(layer.layer.forward_nodes), "a node is an instruction");
    costs.tensor_bytes = aligned_tensor_bytes(layer.layer.graph, shape->alignment);
    layer.front = recompute_front(layer.layer, costs);
    const std::set<int> dropped = dropped_tensors(layer.layer, Recompute::full, {});
    layer.full_bytes = cost_of(replay_plan(layer.layer, dropped), costs).kept_bytes;
  }
  return priced;
}

StageMix RecomputeMixer::mix(const Strategy& strategy, const Program& full, int64_t arena_bytes) {
  ensure(full.arena.bytes <= arena_bytes, "full recompute fits");
  const PricedLayers& priced = layers_of(strategy, full);
  const std::vector<Run> runs = runs_of(model_, full);
  const auto layer_of = [&](const Run& run) -> const PricedLayer& { return priced[static_cast<size_t>(run.kind)]; };
  std::vector<StageDemand> demands;
  StageMix best;
  int64_t limit = arena_bytes - full.arena.bytes;  // for what is kept beyond full recompute
  for (const Run& run : runs) {
    demands.push_back({&layer_of(run).front, run.layers, run.in_flight});
    limit += run.layers * run.in_flight * layer_of(run).full_bytes;
  }
  for (int i = 0; i < kTries; ++i) {
    const std::optional<StageChoice> choice = solve_stage(demands, limit, kPartialChoices);
    if (!choice) break;
    std::vector<RecomputeRule> rules;
    for (size_t r = 0; r < runs.size(); ++r) {
      const PricedLayer& layer = layer_of(runs[r]);
      const auto more = rules_of(layer.layer, layer.front, choice->layers[r], runs[r].first);
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
