#include "planner/simulator/op_cost_table.h"

#include <Eigen/Dense>

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace foresail {
namespace {

constexpr size_t kNeighbours = 8;  // of a shape in three dimensions: a cell's corners
constexpr int kFitRounds = 2000;
constexpr double kSpreadPerOctave = 0.05;         // of distance to the nearest measured shape
constexpr double kSpreadPerOctaveOutside = 0.10;  // beyond the measured range

double median(std::vector<double> values) {
  const size_t middle = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle), values.end());
  return values[middle];
}

/// By kind: how much longer (or shorter) an op takes inside a block than alone, whose operands are warm in the cache.
std::map<OpKind, double> in_sequence_factors(const ProfileTable& table) {
  std::map<OpKind, std::vector<double>> ratios;
  for (const auto& [signature, measured] : table.ops_in_sequence) {
    const auto alone = table.ops.find(signature);
    const auto shape = parse_signature(signature);
    if (alone == table.ops.end() || !shape || !(alone->second.seconds > 0) || !(measured.seconds > 0)) continue;
    ratios[shape->kind].push_back(measured.seconds / alone->second.seconds);
  }
  std::map<OpKind, double> factors;
  for (auto& [kind, values] : ratios) factors[kind] = median(std::move(values));
  return factors;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

/// Coefficients >= 0 that minimise the relative errors of sum(coefficient x term) against the durations: coordinate
/// descent on the normal equations (Franc, Hlavac & Navara 2005), which for these few terms needs some hundred rounds.
template <typename Points>
std::vector<double> fit_trend(const Points& points) {
  const auto terms = static_cast<Eigen::Index>(points[0].shape.terms.size());
  Eigen::MatrixXd normal = Eigen::MatrixXd::Zero(terms, terms);
  Eigen::VectorXd right = Eigen::VectorXd::Zero(terms), scale = Eigen::VectorXd::Zero(terms), row(terms);
  for (const auto& point : points) {
    for (Eigen::Index i = 0; i < terms; ++i)
      scale(i) = std::max(scale(i), point.shape.terms[static_cast<size_t>(i)] / point.seconds);
  }
  for (const auto& point : points) {
    for (Eigen::Index i = 0; i < terms; ++i)
      row(i) = point.shape.terms[static_cast<size_t>(i)] / point.seconds / scale(i);
    normal += row * row.transpose();
    right += row;
  }
  Eigen::VectorXd fit = Eigen::VectorXd::Zero(terms);
  for (int round = 0; round < kFitRounds; ++round) {
    for (Eigen::Index i = 0; i < terms; ++i) {
      const double gradient = normal.row(i).dot(fit) - right(i);
      fit(i) = std::max(0.0, fit(i) - gradient / normal(i, i));
    }
  }
  std::vector<double> trend;
  for (Eigen::Index i = 0; i < terms; ++i) trend.push_back(fit(i) / scale(i));
  return trend;
}

double trend_seconds(const std::vector<double>& trend, const OpShape& shape) {
  double seconds = 0;
  for (size_t i = 0; i < trend.size(); ++i) seconds += trend[i] * shape.terms[i];
  return seconds;
}

}  // namespace

OpCostTable::OpCostTable(const ProfileTable& table) {
  const auto factors = in_sequence_factors(table);
  const auto add = [this](const std::string& signature, double seconds, double spread) {
    if (!(seconds > 0) || !exact_.emplace(signature, Cost{seconds, spread}).second) return;
    if (auto shape = parse_signature(signature)) {
      std::string family = shape->family;
      families_[family].points.push_back({std::move(*shape), seconds, spread});
    }
  };
  for (const auto& [signature, measured] : table.ops_in_sequence)
    add(signature, measured.seconds, median_spread(measured));
  for (const auto& [signature, measured] : table.ops) {
    const auto shape = parse_signature(signature);
    const auto factor = shape ? factors.find(shape->kind) : factors.end();
    add(signature, measured.seconds * (factor == factors.end() ? 1 : factor->second), median_spread(measured));
  }
  for (auto& [name, family] : families_) {
    std::stable_sort(family.points.begin(), family.points.end(),
                     [](const Point& a, const Point& b) { return a.shape.work < b.shape.work; });
    if (family.points[0].shape.position.size() > 1) family.trend = fit_trend(family.points);
  }
}

std::optional<Cost> OpCostTable::find(const std::string& signature) const {
  const auto exact = exact_.find(signature);
  if (exact != exact_.end()) return exact->second;
  const auto wanted = parse_signature(signature);
  if (!wanted) return std::nullopt;
  const auto family = families_.find(wanted->family);
  if (family == families_.end()) return std::nullopt;
  if (wanted->position.size() == 1) return interpolate_line(family->second.points, wanted->work);
  return interpolate(family->second, *wanted);
}

/// A trend with a meaning (fixed, per operand, per FLOP) times what the nearest measured shapes deviate from it,
/// weighted by inverse squared distance in the log of the shape (Shepard 1968) and fading outside of the measured
/// range.
Cost OpCostTable::interpolate(const Family& family, const OpShape& wanted) const {
  std::vector<std::pair<double, const Point*>> near;
  for (const Point& point : family.points) near.emplace_back(distance(point.shape.position, wanted.position), &point);
  std::stable_sort(near.begin(), near.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  const Point& nearest = *near.front().second;
  if (near.front().first < 1e-9) return {nearest.seconds * wanted.work / nearest.shape.work, nearest.spread};
  near.resize(std::min(near.size(), kNeighbours));
  double weights = 0, residual = 0, residual_squared = 0, spread = 0;
  for (const auto& [away, point] : near) {
    const double weight = 1 / (away * away);
    const double value = std::log(point->seconds / trend_seconds(family.trend, point->shape));
    weights += weight, residual += weight * value, residual_squared += weight * value * value;
    spread += weight * point->spread;
  }
  residual /= weights;
  const double disagreement = std::sqrt(std::max(0.0, residual_squared / weights - residual * residual));
  const double outside = octaves_outside(family.points, wanted);
  return {trend_seconds(family.trend, wanted) * std::exp(residual / (1 + outside)),
          spread / weights + disagreement + kSpreadPerOctave * near.front().first + kSpreadPerOctaveOutside * outside};
}

double OpCostTable::octaves_outside(const std::vector<Point>& points, const OpShape& wanted) {
  double outside = 0;
  for (size_t d = 0; d < wanted.position.size(); ++d) {
    double least = points[0].shape.position[d], most = least;
    for (const Point& point : points) {
      least = std::min(least, point.shape.position[d]);
      most = std::max(most, point.shape.position[d]);
    }
    outside += std::max({0.0, least - wanted.position[d], wanted.position[d] - most});
  }
  return outside;
}

/// `points` are sorted by work. Between two of them the log of the rate is linear in the log of the work; beyond, the
/// duration is a straight line in the work (a fixed part and a rate), through the two outermost points.
Cost OpCostTable::interpolate_line(const std::vector<Point>& points, double work) const {
  const auto above = std::lower_bound(points.begin(), points.end(), work,
                                      [](const Point& point, double value) { return point.shape.work < value; });
  const auto octaves = [work](const Point& point) { return std::abs(std::log2(work / point.shape.work)); };
  if (above != points.begin() && above != points.end()) {
    const Point& low = *(above - 1);
    const Point& high = *above;
    const double span = std::log(high.shape.work / low.shape.work);
    const double t = span > 0 ? std::log(work / low.shape.work) / span : 1;
    const double seconds = std::exp((1 - t) * std::log(low.seconds) + t * std::log(high.seconds));
    return {seconds, std::max(low.spread, high.spread) + kSpreadPerOctave * std::min(octaves(low), octaves(high))};
  }
  const bool below = above == points.begin();
  const Point& edge = below ? points.front() : points.back();
  const double widened = edge.spread + (kSpreadPerOctave + kSpreadPerOctaveOutside) * octaves(edge);
  // The neighbour must differ enough in size for its slope to mean something.
  const Point* other = nullptr;
  for (const Point& point : points) {
    const bool far = below ? point.shape.work >= 1.5 * edge.shape.work : point.shape.work <= edge.shape.work / 1.5;
    if (far && (other == nullptr || !below)) other = &point;
  }
  const double rate_slope = edge.seconds / edge.shape.work;
  double slope = rate_slope;
  if (other != nullptr) slope = (edge.seconds - other->seconds) / (edge.shape.work - other->shape.work);
  // A fixed part is never negative; beyond the largest shape at least half of the time there grows with the work.
  slope = std::clamp(slope, below ? 0.0 : rate_slope / 2, rate_slope);
  return {edge.seconds + slope * (work - edge.shape.work), widened};
}

}  // namespace foresail
