// The strategies of a device count, in a fixed order, and bounds on what they need that are cheaper than compiling
// them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "planner/search/search.h"

namespace foresail {

/// Every combination of dp x tp x pp = devices, micro-batch and recompute that the fixed keys allow, split by `legal`.
/// Order: tp, pp, micro-batch ascending, recompute none before full.
struct Space {
  std::vector<Strategy> strategies;
  std::map<std::string, int64_t> illegal;  ///< by reason
};
Space space_of(const SearchRequest& request, int64_t devices);

/// Divisors in ascending order.
std::vector<int64_t> divisors(int64_t value);

/// Bytes that stage 0 cannot do without: parameters, gradients, optimizer state and every layer's input of every
/// micro-batch in flight. Never above the compiled arena.
class MemoryBound {
 public:
  MemoryBound(const ModelSpec& model, const Job& job) : model_(model), job_(job) {}
  int64_t bytes(const Strategy& strategy);

 private:
  const ModelSpec& model_;
  const Job& job_;
  std::map<std::pair<int64_t, int64_t>, int64_t> state_bytes_;  // by (tp, pp)
};

/// Seconds that the compute queue of one stage is busy: no step is shorter.
double busy_seconds(const Program& program, const CostModel& costs, int64_t devices_per_node);

}  // namespace foresail
