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

  /// In sequence as measured; else alone, times what ops of this kind were seen to differ in sequence; else read
  /// between the measured shapes of the same family. Empty if nothing of the family was measured.
  std::optional<Cost> find(const std::string& signature) const;

 private:
  struct Point {
    OpShape shape;
    double seconds = 0, spread = 0;
  };
  struct Family {
    std::vector<Point> points;  // ascending work
    std::vector<double> trend;  // seconds per term of OpShape::terms; empty for one-dimensional families
  };
  Cost interpolate(const Family& family, const OpShape& wanted) const;
  /// Octaves by which a shape lies outside of the measured range, summed over its dimensions.
  static double octaves_outside(const std::vector<Point>& points, const OpShape& wanted);
  Cost interpolate_line(const std::vector<Point>& points, double work) const;

  std::map<std::string, Cost> exact_;
  std::map<std::string, Family> families_;
};

}  // namespace foresail
