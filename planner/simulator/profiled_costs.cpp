// Costs from what was measured on this machine.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "planner/simulator/comm_cost_table.h"
#include "planner/simulator/cost_model.h"
#include "planner/simulator/op_cost_table.h"

namespace foresail {
namespace {

// Drift of a machine between profiling and training: what all costs share (docs/planning.md).
constexpr double kCommonSpread = 0.08;
// The same table stands for another number of ranks or threads: added per octave of either.
constexpr double kSpreadPerOctaveOfRanks = 0.10;

/// What a kind of collective is read from, best first. An older machine file may lack the later kinds; by the volume per
/// link a reduce-scatter and an all-to-all of some bytes are like an all-gather of as many, a ring shift like a message.
struct CommSource {
  InstructionKind kind;
  const char *measured, *like;
};
constexpr std::array<CommSource, 5> kSources = {{{InstructionKind::all_reduce, "all_reduce", "all_reduce"},
                                                 {InstructionKind::all_gather, "all_gather", "all_gather"},
                                                 {InstructionKind::reduce_scatter, "reduce_scatter", "all_gather"},
                                                 {InstructionKind::all_to_all, "all_to_all", "all_gather"},
                                                 {InstructionKind::ring_shift, "ring_shift", "send"}}};
// Added to the spread of what was not measured itself.
constexpr double kSpreadOfLikeness = 0.30;

double octaves(int a, int b) { return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b))); }

/// The table measured with these ranks and threads, else the nearest one: equal threads matter most, because kernels
/// scale with them while more ranks only share the memory bandwidth.
const ProfileTable& choose_table(const Machine& machine, int ranks, int threads) {
  if (machine.tables.empty()) {
    throw_bad_input(fmt::format("machine '{}'", machine.name), "it holds no measured table",
                    "run foresail profile --out machine.json");
  }
  const auto distance = [&](const ProfileTable& table) {
    return 4 * octaves(threads, table.threads) + octaves(ranks, table.ranks);
  };
  return *std::min_element(machine.tables.begin(), machine.tables.end(),
                           [&](const ProfileTable& a, const ProfileTable& b) { return distance(a) < distance(b); });
}

class ProfiledCosts final : public CostModel {
 public:
  ProfiledCosts(const Machine& machine, const ProfileTable& table, int ranks, int threads);
  Cost op_seconds(const OpInstance& op) const override;
  Cost collective_seconds(InstructionKind kind, int64_t bytes, const GroupSpan& span) const override;
  Cost message_seconds(int64_t bytes, bool crosses_nodes) const override;
  // Posting is part of the measured duration of a message: a blocking library copies when the receiver asks.
  double issue_seconds() const override { return 0; }
  bool calibrated() const override { return exact_; }
  double common_spread() const override { return common_spread_; }
  std::string note() const override { return note_; }

 private:
  Cost measured_comm(const std::string& kind, int64_t group_size, int64_t bytes) const;
  std::string derived_kinds() const;

  std::string machine_name_;
  OpCostTable ops_;
  CommCostTable comm_;
  bool exact_ = false;
  double common_spread_ = kCommonSpread;
  double dilation_ = 1;  // more threads than cores share them
  std::string note_;
};

ProfiledCosts::ProfiledCosts(const Machine& machine, const ProfileTable& table, int ranks, int threads)
    : machine_name_(machine.name),
      ops_(table),
      comm_(table, machine.name),
      exact_(table.ranks == ranks && table.threads == threads) {
  if (ranks > 1) note_ = derived_kinds();
  if (exact_) return;
  if (!note_.empty()) note_ += "; ";
  const double away = octaves(ranks, table.ranks) + octaves(threads, table.threads);
  common_spread_ += kSpreadPerOctaveOfRanks * away;
  note_ += fmt::format("nothing was measured with {} ranks of {} threads: predicted from {} ranks of {} threads", ranks,
                       threads, table.ranks, table.threads);
  if (machine.cores > 0) {
    const auto load = [&](int r, int t) { return std::max(1.0, static_cast<double>(r) * t / machine.cores); };
    dilation_ = load(ranks, threads) / load(table.ranks, table.threads);
    if (dilation_ > 1) note_ += fmt::format("; {} cores are shared, all durations x {:.2f}", machine.cores, dilation_);
  }
}

Cost ProfiledCosts::op_seconds(const OpInstance& op) const {
  const std::string key = signature(op);
  const auto cost = ops_.find(key);
  if (!cost) {
    throw_bad_input(fmt::format("machine '{}': operator '{}'", machine_name_, key), "nothing of its kind was measured",
                    "run foresail profile --for MODEL with the model to be planned");
  }
  return {cost->seconds * dilation_, cost->spread};
}

Cost ProfiledCosts::measured_comm(const std::string& kind, int64_t group_size, int64_t bytes) const {
  const auto cost = comm_.find(kind, group_size, bytes);
  if (!cost) {
    throw_bad_input(fmt::format("machine '{}': collective '{}'", machine_name_, kind), "it was not measured",
                    "run foresail profile --ranks N with N >= 2");
  }
  return {cost->seconds * dilation_, cost->spread};
}

Cost ProfiledCosts::collective_seconds(InstructionKind kind, int64_t bytes, const GroupSpan& span) const {
  if (span.size <= 1) return {};
  const auto source =
      std::find_if(kSources.begin(), kSources.end(), [kind](const CommSource& one) { return one.kind == kind; });
  ensure(source != kSources.end(), "a collective has a kind of measurement");
  if (comm_.has(source->measured)) return measured_comm(source->measured, span.size, bytes);
  const bool message = source->like == std::string_view("send");
  Cost cost = measured_comm(source->like, message ? 2 : span.size, bytes);
  cost.spread += kSpreadOfLikeness;
  return cost;
}

/// "reduce_scatter, ring_shift were not measured: taken from all_gather, send".
std::string ProfiledCosts::derived_kinds() const {
  std::vector<std::string_view> missing, like;
  for (const CommSource& source : kSources) {
    if (comm_.has(source.measured) || !comm_.has(source.like)) continue;
    missing.emplace_back(source.measured);
    if (std::find(like.begin(), like.end(), source.like) == like.end()) like.emplace_back(source.like);
  }
  if (missing.empty()) return "";
  return fmt::format("{} not measured, taken from {}: profile again if the strategy uses {}", fmt::join(missing, ", "),
                     fmt::join(like, ", "), missing.size() == 1 ? "it" : "them");
}

Cost ProfiledCosts::message_seconds(int64_t bytes, bool) const { return measured_comm("send", 2, bytes); }

}  // namespace

double median_spread(const Measurement& measured) {
  const double samples = std::max(1, measured.samples);
  return measured.spread * std::min(1.0, std::sqrt(std::acos(-1.0) / 2 / samples));
}

std::unique_ptr<CostModel> make_profiled_cost_model(const Machine& machine, int ranks, int threads) {
  ensure(ranks >= 1 && threads >= 1, "a rank has at least one thread");
  return std::make_unique<ProfiledCosts>(machine, choose_table(machine, ranks, threads), ranks, threads);
}

}  // namespace foresail
