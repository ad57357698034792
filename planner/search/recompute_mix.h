// Recompute choices between the presets: what the memory that is left can keep, with the least replay.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/search/evaluate.h"
#include "program/recompute_solver.h"
#include "program/stage_shape.h"

namespace foresail {

/// One stage with a recompute choice of its own for its layers.
struct StageMix {
  std::vector<RecomputeRule> rules;  ///< for every layer of the stage, ascending
  Program program;                   ///< compiled with them
};

/// Mixes for the strategies of one device count. Fronts of layers are solved once per degrees and micro-batch, for each kind
/// of block.
class RecomputeMixer {
 public:
  /// All references must outlive the mixer.
  RecomputeMixer(const ModelSpec& model, const Job& job, const Machine& machine, const Evaluator& evaluator)
      : model_(model), job_(job), machine_(machine), evaluator_(evaluator) {}

  /// The rules for the layers of `stage` with the least replay of those whose compiled arena has at most `arena_bytes`.
  /// `full` is the stage compiled with full recompute and fits. The solver counts kept bytes alone; what the compiler says
  /// about the rest (temporaries, slots that share bytes) corrects its limit a few times. If nothing better fits: `full`.
  StageMix mix(const Strategy& strategy, const Program& full, int64_t arena_bytes);

 private:
  struct PricedLayer {
    Differentiated layer;
    RecomputeFront front;
    int64_t full_bytes = 0;  ///< kept by full recompute
  };
  using PricedLayers =
      std::array<PricedLayer, kBlockKinds>;  ///< by BlockKind; what no layer of the stage is stays empty
  const PricedLayers& layers_of(const Strategy& strategy, const Program& program);

  const ModelSpec& model_;
  const Job& job_;
  const Machine& machine_;
  const Evaluator& evaluator_;
  std::map<std::string, PricedLayers> layers_;
};

/// Rules of several stages as one list: in order, equal neighbours joined, layers that replay nothing left out.
std::vector<RecomputeRule> joined(std::vector<RecomputeRule> rules);

/// Whether the rules give all of `layers` layers what one preset gives them.
bool is_preset(const std::vector<RecomputeRule>& rules, int64_t layers);

}  // namespace foresail
