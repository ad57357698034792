// Measured durations of ops, and what they say about shapes that were not measured.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/simulator/cost_model.h"
#include "planner/simulator/op_shape.h"
#include "spec/machine.h"

namespace foresail {

class OpCostTable {
 public:
  explicit OpCostTable(const ProfileTable& table);

  /// In sequence as measured; else alone, times what ops of this kind were seen to differ in sequence; else the measured
  /// rates of the same family (work per second) interpolated in the log of the shape. Empty if nothing of the family was
  /// measured.
  std::optional<Cost> find(const std::string& signature) const;

 private:
  struct Point {
    OpShape shape;
    double seconds = 0, spread = 0;
  };
  Cost interpolate(const std::vector<Point>& points, const OpShape& wanted) const;
  Cost interpolate_line(const std::vector<Point>& points, double work) const;

  std::map<std::string, Cost> exact_;
  std::map<std::string, std::vector<Point>> families_;  // one-dimensional ones sorted by work
};

}  // namespace foresail
