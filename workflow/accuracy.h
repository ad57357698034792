// Error figures of predictions against measurements, and of rankings within groups.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace foresail {

struct Comparison {
  double measured = 0, predicted = 0, low = 0, high = 0;
};

struct ErrorFigures {
  std::optional<double> mape, median_ape, p90_ape, max_ape, bias, interval_coverage, interval_width;
};

/// Absolute percentage errors are |predicted / measured - 1|; bias is the mean of predicted / measured - 1; width the
/// median of (high - low) / (2 predicted). All empty for no rows.
ErrorFigures error_figures(std::span<const Comparison> rows);

/// Spearman's rank correlation of predicted with measured, ties at their mean rank; empty for fewer than two rows or
/// when one side does not vary.
std::optional<double> spearman(std::span<const Comparison> group);

/// Measured time of the row with the least prediction over the least measured time, minus 1. Not for empty groups.
double regret(std::span<const Comparison> group);

/// Linear interpolation between order statistics; `values` not empty.
double quantile(std::vector<double> values, double share);

}  // namespace foresail
