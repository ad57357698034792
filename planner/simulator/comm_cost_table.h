// Measured durations of collectives and messages by group size and bytes, and what they say about other sizes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/simulator/cost_model.h"
#include "spec/machine.h"

namespace foresail {

class CommCostTable {
 public:
  /// Throws bad_input naming the key if one is not "kind/group_size/bytes".
  CommCostTable(const ProfileTable& table, const std::string& machine_name);

  /// Between measured sizes the log of the duration is linear in the log of the bytes; beyond the largest the duration
  /// is alpha + beta x bytes through the two largest. A group size that was not measured takes the nearest one (nor
  /// one that was measured only with far fewer bytes, if another reaches them), with
  /// the passes of a ring and log2 of the ranks for the latency, and a wider spread. Empty: nothing of this kind
  /// measured.
  std::optional<Cost> find(const std::string& kind, int64_t group_size, int64_t bytes) const;
  /// Whether anything of this kind was measured.
  bool has(const std::string& kind) const { return curves_.count(kind) != 0; }

 private:
  struct Point {
    int64_t bytes = 0;
    double seconds = 0, spread = 0;
  };
  using Curve = std::vector<Point>;  // ascending bytes
  static Cost read(const Curve& curve, int64_t bytes);

  std::map<std::string, std::map<int64_t, Curve>> curves_;
};

}  // namespace foresail
