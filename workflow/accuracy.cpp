#include "workflow/accuracy.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"

namespace foresail {
namespace {

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t i = 0; i < order.size();) {
    size_t end = i;
    while (end < order.size() && values[order[end]] == values[order[i]]) ++end;
    const double rank = static_cast<double>(i + end - 1) / 2;
    for (; i < end; ++i) ranks[order[i]] = rank;
  }
  return ranks;
}

}  // namespace

double quantile(std::vector<double> values, double share) {
  ensure(!values.empty(), "a quantile of something");
  std::sort(values.begin(), values.end());
  const double at = share * static_cast<double>(values.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

ErrorFigures error_figures(std::span<const Comparison> rows) {
  ErrorFigures figures;
  if (rows.empty()) return figures;
  std::vector<double> absolute, signed_errors, widths, inside;
  for (const Comparison& row : rows) {
    signed_errors.push_back(row.predicted / row.measured - 1);
    absolute.push_back(std::abs(signed_errors.back()));
    widths.push_back((row.high - row.low) / (2 * row.predicted));
    inside.push_back(row.low <= row.measured && row.measured <= row.high ? 1 : 0);
  }
  figures.mape = mean(absolute);
  figures.median_ape = quantile(absolute, 0.5);
  figures.p90_ape = quantile(absolute, 0.9);
  figures.max_ape = *std::max_element(absolute.begin(), absolute.end());
  figures.bias = mean(signed_errors);
  figures.interval_coverage = mean(inside);
  figures.interval_width = quantile(widths, 0.5);
  return figures;
}

std::optional<double> spearman(std::span<const Comparison> group) {
  if (group.size() < 2) return std::nullopt;
  std::vector<double> measured, predicted;
  for (const Comparison& row : group) measured.push_back(row.measured), predicted.push_back(row.predicted);
  const std::vector<double> a = ranks_of(measured), b = ranks_of(predicted);
  const double mean_a = mean(a), mean_b = mean(b);
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b), aa += (a[i] - mean_a) * (a[i] - mean_a),
        bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  if (aa == 0 || bb == 0) return std::nullopt;
  return ab / std::sqrt(aa * bb);
}

double regret(std::span<const Comparison> group) {
  const auto pick = std::min_element(
      group.begin(), group.end(), [](const Comparison& a, const Comparison& b) { return a.predicted < b.predicted; });
  const auto best = std::min_element(group.begin(), group.end(),
                                     [](const Comparison& a, const Comparison& b) { return a.measured < b.measured; });
  return pick->measured / best->measured - 1;
}

}  // namespace foresail
