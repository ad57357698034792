// Costs from what was measured on this machine.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "ops/op_table.h"
#include "ops/rounded_storage.h"
#include "planner/simulator/comm_cost_table.h"
#include "planner/simulator/cost_model.h"
#include "planner/simulator/expert_load.h"
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

// Added to the spread of what was priced by the bandwidth of a copy: it may be cached, strided or bound by its fixed part.
constexpr double kSpreadOfBandwidth = 0.40;

double octaves(int a, int b) { return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b))); }

/// Moves and adds elements: what it costs is what its bytes cost. Strategies bring these kinds into a Program, so a profile
/// of the model alone may lack them; the arithmetic of other element-wise kinds is not guessed.
bool moves_or_adds(OpKind kind) {
  switch (kind) {
    case OpKind::copy:
    case OpKind::cast:
    case OpKind::add:
    case OpKind::bias_add:
    case OpKind::bias_backward:
    case OpKind::fill_zero:
    case OpKind::split_qkv:
    case OpKind::join_qkv:
    case OpKind::heads_split:
    case OpKind::heads_merge:
    case OpKind::rows_split:
    case OpKind::rows_merge:
    case OpKind::moe_dispatch:
    case OpKind::moe_dispatch_backward:
    case OpKind::moe_combine:
    case OpKind::moe_combine_backward: return true;
    default: return false;
  }
}

/// The tables by how near they were measured: equal threads matter most, because kernels scale with them while more ranks
/// only share the memory bandwidth.
std::vector<const ProfileTable*> nearest_first(const Machine& machine, int ranks, int threads) {
  if (machine.tables.empty()) {
    throw_bad_input(fmt::format("machine '{}'", machine.name), "it holds no measured table",
                    "run foresail profile --out machine.json");
  }
  const auto distance = [&](const ProfileTable* table) {
    return 4 * octaves(threads, table->threads) + octaves(ranks, table->ranks);
  };
  std::vector<const ProfileTable*> tables;
  for (const ProfileTable& table : machine.tables) tables.push_back(&table);
  std::stable_sort(tables.begin(), tables.end(),
                   [&](const ProfileTable* a, const ProfileTable* b) { return distance(a) < distance(b); });
  return tables;
}

/// One table and how what it says is read for the ranks and threads that are asked for.
struct Source {
  const ProfileTable* table = nullptr;
  CommCostTable comm;
  double dilation = 1;  ///< more threads than cores share them
  double spread = 0;    ///< added where this is not the nearest table
  std::string text;     ///< "2 ranks of 1 threads"
};

class ProfiledCosts final : public CostModel {
 public:
  ProfiledCosts(const Machine& machine, int ranks, int threads);
  Cost op_seconds(const OpInstance& op) const override;
  Cost collective_seconds(InstructionKind kind, int64_t bytes, const GroupSpan& span) const override;
  Cost message_seconds(int64_t bytes, bool) const override { return measured_comm("send", 2, bytes); }
  // Posting is part of the measured duration of a message: a blocking library copies when the receiver asks.
  double issue_seconds() const override { return 0; }
  bool calibrated() const override { return exact_; }
  double common_spread() const override { return common_spread_; }
  std::string note() const override;

 private:
  const ProfileTable& nearest() const { return *sources_.front().table; }
  std::optional<Cost> elsewhere(const std::string& key) const;
  std::optional<Cost> by_bandwidth(const OpInstance& op) const;
  std::optional<Cost> by_usual_gradients(const OpInstance& op) const;
  Cost rounded(const OpInstance& op) const;
  bool measured(const std::string& kind) const;
  Cost measured_comm(const std::string& kind, int64_t group_size, int64_t bytes) const;
  void remember(const std::string& what, const std::string& source) const;

  Machine machine_;              // its tables are looked up as long as the costs live
  std::vector<Source> sources_;  // nearest first
  OpCostTable ops_;              // of the nearest
  bool exact_ = false;
  double common_spread_ = kCommonSpread;
  double least_seconds_ = 0;  // of any measured op: the fixed part of one
  std::string note_;
  // Guarded: tables that were asked for what the nearest lacks, by index, and what was taken from where.
  mutable std::mutex mutex_;
  mutable std::map<size_t, OpCostTable> other_ops_;
  mutable std::map<std::string, std::set<std::string>> taken_;
};

double quickest_op(const ProfileTable& table) {
  double least = 0;
  for (const auto* ops : {&table.ops, &table.ops_in_sequence}) {
    for (const auto& [key, measured] : *ops) {
      if (measured.seconds > 0 && (least == 0 || measured.seconds < least)) least = measured.seconds;
    }
  }
  return least;
}

ProfiledCosts::ProfiledCosts(const Machine& machine, int ranks, int threads)
    : machine_(machine), ops_(*nearest_first(machine_, ranks, threads).front()) {
  const auto load = [&](int r, int t) { return std::max(1.0, static_cast<double>(r) * t / machine.cores); };
  for (const ProfileTable* table : nearest_first(machine_, ranks, threads)) {
    const double away = octaves(ranks, table->ranks) + octaves(threads, table->threads);
    sources_.push_back({table, CommCostTable(*table, machine.name), 1, kSpreadPerOctaveOfRanks * away,
                        fmt::format("{} ranks of {} threads", table->ranks, table->threads)});
    if (machine.cores > 0) sources_.back().dilation = load(ranks, threads) / load(table->ranks, table->threads);
  }
  least_seconds_ = quickest_op(nearest());
  exact_ = nearest().ranks == ranks && nearest().threads == threads;
  Source& first = sources_.front();
  common_spread_ += std::exchange(first.spread, 0);  // all costs share it
  if (exact_) return;
  note_ =
      fmt::format("nothing was measured with {} ranks of {} threads: predicted from {}", ranks, threads, first.text);
  if (first.dilation > 1)
    note_ += fmt::format("; {} cores are shared, all durations x {:.2f}", machine.cores, first.dilation);
}

void ProfiledCosts::remember(const std::string& what, const std::string& source) const {
  const std::lock_guard lock(mutex_);
  taken_[source].insert(what);
}

/// "...; cast/f32 not measured, taken from the copy bandwidth: profile again ...".
std::string ProfiledCosts::note() const {
  const std::lock_guard lock(mutex_);
  std::string text = note_;
  for (const auto& [source, kinds] : taken_) {
    text += fmt::format("{}{} not measured, taken from {}", text.empty() ? "" : "; ", fmt::join(kinds, ", "), source);
  }
  return taken_.empty() ? text : text + ": foresail profile --for MODEL with a larger --budget measures more";
}

Cost ProfiledCosts::op_seconds(const OpInstance& instance) const {
  const OpInstance op = on_busiest_rank(instance);
  const std::string key = signature(op);
  if (const auto cost = ops_.find(key)) return {cost->seconds * sources_.front().dilation, cost->spread};
  if (const auto cost = elsewhere(key)) return *cost;
  if (has_rounded_storage(op)) return rounded(op);
  if (const auto cost = by_bandwidth(op)) return *cost;
  if (const auto cost = by_usual_gradients(op)) return *cost;
  throw_bad_input(fmt::format("machine '{}': operator '{}'", machine_.name, key), "nothing of its kind was measured",
                  "run foresail profile --for MODEL with the model to be planned");
}

/// "cast/f32" of "cast/f32/8x8->8x8".
std::string family_of(const std::string& key) { return key.substr(0, key.find('/', key.find('/') + 1)); }

/// The same family measured with another number of ranks or threads.
std::optional<Cost> ProfiledCosts::elsewhere(const std::string& key) const {
  for (size_t i = 1; i < sources_.size(); ++i) {
    const Source& source = sources_[i];
    std::optional<Cost> cost;
    {
      const std::lock_guard lock(mutex_);
      cost = other_ops_.try_emplace(i, *source.table).first->second.find(key);
    }
    if (!cost) continue;
    remember(family_of(key), source.text);
    return Cost{cost->seconds * source.dilation, cost->spread + source.spread};
  }
  return std::nullopt;
}

std::optional<Cost> ProfiledCosts::by_bandwidth(const OpInstance& op) const {
  const double bandwidth = nearest().copy_bytes_per_second;
  if (!moves_or_adds(op.kind) || !(bandwidth > 0)) return std::nullopt;
  remember(family_of(signature(op)), "the copy bandwidth");
  return Cost{(least_seconds_ + bytes_of(op) / bandwidth) * sources_.front().dilation, kSpreadOfBandwidth};
}

/// Norm and optimizer walk memory: with gradients of another type they take as much longer as they read more bytes.
std::optional<Cost> ProfiledCosts::by_usual_gradients(const OpInstance& op) const {
  if (op.kind != OpKind::squared_norm && op.kind != OpKind::adamw) return std::nullopt;
  OpInstance usual = op;
  usual.inputs.at(0).dtype = op.kind == OpKind::adamw ? op.outputs.at(1).dtype : DType::f32;
  if (usual.inputs[0] == op.inputs[0]) return std::nullopt;
  const std::string key = signature(usual);
  std::optional<Cost> cost = ops_.find(key);
  if (cost) cost->seconds *= sources_.front().dilation;
  if (!cost) cost = elsewhere(key);
  if (!cost) return std::nullopt;
  remember(family_of(signature(op)) + fmt::format(" of gradients in {}", name_of(op.inputs[0].dtype)),
           fmt::format("gradients in {}", name_of(usual.inputs[0].dtype)));
  return Cost{cost->seconds * bytes_of(op) / bytes_of(usual), cost->spread + kSpreadOfLikeness};
}

/// The f32 operator, with the widening and rounding of its 16-bit operands at the speed of a copy.
Cost ProfiledCosts::rounded(const OpInstance& op) const {
  Cost cost = op_seconds(widened(op));
  if (!(nearest().copy_bytes_per_second > 0)) return cost;
  const double passes = bytes_of_rounding(op) / nearest().copy_bytes_per_second * sources_.front().dilation;
  remember("16-bit storage", "f32 operators and the copy bandwidth");
  return {cost.seconds + passes, std::max(cost.spread, kSpreadOfBandwidth)};
}

bool ProfiledCosts::measured(const std::string& kind) const {
  return std::any_of(sources_.begin(), sources_.end(), [&](const Source& source) { return source.comm.has(kind); });
}

/// From the nearest table that has the kind.
Cost ProfiledCosts::measured_comm(const std::string& kind, int64_t group_size, int64_t bytes) const {
  for (const Source& source : sources_) {
    const auto cost = source.comm.find(kind, group_size, bytes);
    if (!cost) continue;
    if (&source != &sources_.front()) remember(kind, source.text);
    return {cost->seconds * source.dilation, cost->spread + source.spread};
  }
  throw_bad_input(fmt::format("machine '{}': collective '{}'", machine_.name, kind), "it was not measured",
                  "run foresail profile --ranks N with N >= 2");
}

Cost ProfiledCosts::collective_seconds(InstructionKind kind, int64_t bytes, const GroupSpan& span) const {
  if (span.size <= 1) return {};
  const auto source =
      std::find_if(kSources.begin(), kSources.end(), [kind](const CommSource& one) { return one.kind == kind; });
  ensure(source != kSources.end(), "a collective has a kind of measurement");
  if (measured(source->measured)) return measured_comm(source->measured, span.size, bytes);
  const bool message = source->like == std::string_view("send");
  Cost cost = measured_comm(source->like, message ? 2 : span.size, bytes);
  cost.spread += kSpreadOfLikeness;
  if (source->measured != source->like) remember(source->measured, source->like);
  return cost;
}

}  // namespace

double median_spread(const Measurement& measured) {
  const double samples = std::max(1, measured.samples);
  return measured.spread * std::min(1.0, std::sqrt(std::acos(-1.0) / 2 / samples));
}

std::unique_ptr<CostModel> make_profiled_cost_model(const Machine& machine, int ranks, int threads) {
  ensure(ranks >= 1 && threads >= 1, "a rank has at least one thread");
  return std::make_unique<ProfiledCosts>(machine, ranks, threads);
}

}  // namespace foresail
