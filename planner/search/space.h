// The strategies of a device count, in a fixed order, and bounds on what they need that are cheaper than compiling
// them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "planner/search/search.h"

namespace foresail {

/// Every combination of degrees, micro-batch, schedule, sequence parallelism, ZeRO stage and recompute that the fixed keys
/// allow, split by `legal`. A fixed key has its value everywhere. Otherwise: dp x tp x pp = devices; cp too where sequences
/// have kLongSequence tokens; every divisor of the batch as micro-batch; 1F1B, and with stages also interleaving of two
/// chunks where each has a layer and ZB-H1; sequence parallelism off, and on with tp; ZeRO 0, and 1 and 3 where several
/// ranks hold the same weights; recompute none, selective, full. Other keys have their default. Order: tp, cp, pp, then
/// micro-batch ascending, then the rest from simple to involved.
constexpr int64_t kLongSequence = 32768;
struct Space {
  std::vector<Strategy> strategies;
  /// By reason: the combinations of degrees and micro-batch of which some variant is refused for it.
  std::map<std::string, int64_t> illegal;
};
Space space_of(const SearchRequest& request, int64_t devices);

/// Divisors in ascending order.
std::vector<int64_t> divisors(int64_t value);

/// Bytes that stage 0 cannot do without: parameters, gradients, optimizer state (of ZeRO's shards where it cuts them) and
/// every layer's input of every micro-batch in flight under the schedule. Never above the compiled arena.
class MemoryBound {
 public:
  MemoryBound(const ModelSpec& model, const Job& job) : model_(model), job_(job) {}
  int64_t bytes(const Strategy& strategy);

 private:
  struct Stage {
    int64_t parameters = 0, experts = 0;  ///< elements; of experts those of all ranks
    std::vector<int64_t> chunk_layers;    ///< of each chunk
  };
  const Stage& stage_of(const Strategy& strategy);
  const std::vector<int32_t>& slots_of(const Strategy& strategy, int64_t micro_batches);

  const ModelSpec& model_;
  const Job& job_;
  std::map<std::string, Stage> stages_;
  std::map<std::string, std::vector<int32_t>> slots_;
};

/// Micro-batches of one rank in a step; the last ones hold masked sequences where the batch is ragged.
int64_t micro_batches_of(const Job& job, const Strategy& strategy);

/// The plain variant of a strategy: same degrees, micro-batch and what shapes its products, none of ZeRO, sequence
/// parallelism (which a model with experts must have), recompute or another schedule. Its products are part of every
/// variant's work.
Strategy plain_variant(const Strategy& strategy, bool has_experts = false);

/// Seconds of all matrix products and attention of one stage in a step. Of the plain variant's stage 0, which has as many
/// layers as the fullest stage of any variant, a bound on the step of every variant.
double product_seconds(const Program& program, const CostModel& costs);

/// Seconds that the compute queue of one stage is busy: no step is shorter.
double busy_seconds(const Program& program, const CostModel& costs, int64_t devices_per_node);

}  // namespace foresail
