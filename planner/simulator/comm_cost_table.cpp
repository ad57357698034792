#include "planner/simulator/comm_cost_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"

namespace foresail {
namespace {

constexpr double kSpreadPerOctaveOutside = 0.10;  // of bytes beyond the measured ones
constexpr double kSpreadPerOctaveOfRanks = 0.15;  // of group size away from the measured ones

bool parse_positive(std::string_view text, int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value > 0;
}

/// Share of the bytes that a ring of `ranks` sends over each link, up to a factor that all ranks share.
double ring_share(int64_t ranks) { return static_cast<double>(ranks - 1) / static_cast<double>(ranks); }

}  // namespace

CommCostTable::CommCostTable(const ProfileTable& table, const std::string& machine_name) {
  for (const auto& [key, measured] : table.collectives) {
    const size_t first = key.find('/');
    const size_t second = first == std::string::npos ? first : key.find('/', first + 1);
    int64_t ranks = 0, bytes = 0;
    if (second == std::string::npos ||
        !parse_positive(std::string_view(key).substr(first + 1, second - first - 1), ranks) ||
        !parse_positive(std::string_view(key).substr(second + 1), bytes)) {
      throw_bad_input(fmt::format("machine '{}': field 'collectives.{}'", machine_name, key),
                      "not of the form kind/group_size/bytes", "profile the machine again");
    }
    if (ranks < 2 || !(measured.seconds > 0)) continue;
    curves_[key.substr(0, first)][ranks].push_back({bytes, measured.seconds, median_spread(measured)});
  }
  for (auto& [kind, by_size] : curves_) {
    for (auto& [ranks, curve] : by_size) {
      std::sort(curve.begin(), curve.end(), [](const Point& a, const Point& b) { return a.bytes < b.bytes; });
    }
  }
}

Cost CommCostTable::read(const Curve& curve, int64_t bytes) {
  const Point& first = curve.front();
  const Point& last = curve.back();
  if (bytes <= first.bytes) return {first.seconds, first.spread};
  if (bytes > last.bytes) {
    const double rate = last.seconds / static_cast<double>(last.bytes);
    double beta = rate;
    if (curve.size() > 1) {
      const Point& before = curve[curve.size() - 2];
      beta = (last.seconds - before.seconds) / static_cast<double>(last.bytes - before.bytes);
    }
    beta = std::clamp(beta, rate / 2, rate);  // alpha >= 0, and noise must not make large transfers free
    const double octaves = std::log2(static_cast<double>(bytes) / static_cast<double>(last.bytes));
    return {last.seconds + beta * static_cast<double>(bytes - last.bytes),
            last.spread + kSpreadPerOctaveOutside * octaves};
  }
  const auto high = std::lower_bound(curve.begin(), curve.end(), bytes,
                                     [](const Point& point, int64_t value) { return point.bytes < value; });
  const auto low = high - 1;
  const double t = std::log(static_cast<double>(bytes) / static_cast<double>(low->bytes)) /
                   std::log(static_cast<double>(high->bytes) / static_cast<double>(low->bytes));
  return {std::exp((1 - t) * std::log(low->seconds) + t * std::log(high->seconds)),
          std::max(low->spread, high->spread)};
}

std::optional<Cost> CommCostTable::find(const std::string& kind, int64_t group_size, int64_t bytes) const {
  const auto by_size = curves_.find(kind);
  if (by_size == curves_.end()) return std::nullopt;
  const auto octaves = [group_size](int64_t ranks) {
    return std::abs(std::log2(static_cast<double>(group_size) / static_cast<double>(ranks)));
  };
  // A curve that ends far below these bytes says less than one of another group size that reaches them.
  const auto away = [&](const auto& entry) {
    const double beyond = static_cast<double>(bytes) / static_cast<double>(entry.second.back().bytes);
    return octaves(entry.first) + std::log2(std::max(beyond, 1.0));
  };
  const auto nearest = std::min_element(by_size->second.begin(), by_size->second.end(),
                                        [&](const auto& a, const auto& b) { return away(a) < away(b); });
  const Cost measured = read(nearest->second, bytes);
  if (nearest->first == group_size || kind == "ring_shift") return measured;  // a shift is to one neighbour
  const double latency = std::min(measured.seconds, nearest->second.front().seconds);
  const double latency_growth =
      std::log2(static_cast<double>(group_size)) / std::log2(static_cast<double>(nearest->first));
  const double transfer_growth = ring_share(group_size) / ring_share(nearest->first);
  return Cost{latency * latency_growth + (measured.seconds - latency) * transfer_growth,
              measured.spread + kSpreadPerOctaveOfRanks * octaves(nearest->first)};
}

}  // namespace foresail
