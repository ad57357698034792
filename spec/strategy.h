// A parallel strategy: every choice that the planner makes and the runtime obeys.
#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace foresail {

enum class ScheduleKind : uint8_t {
  one_f_one_b,  ///< Narayanan et al. 2019, Fan et al. 2021
  gpipe,        ///< all forwards, then all backwards (Huang et al. 2019)
  interleaved,  ///< 1F1B over several model chunks per stage (Narayanan et al. 2021)
  zb_h1,        ///< backward split in two, weight gradients fill the bubble (Qi et al. 2023)
  zb_v,         ///< the same over two chunks per stage laid out as a V
};
enum class Recompute : uint8_t {
  none,       ///< every tensor that backward needs is kept
  selective,  ///< outputs of matrix products, attention and collectives are kept, the rest is replayed
  full,       ///< only a block's input is kept; backward replays the block
};
enum class ContextKind : uint8_t {
  ring,        ///< keys and values travel around the ring (Liu et al. 2023)
  all_to_all,  ///< heads are exchanged for positions (Jacobs et al. 2023, DeepSpeed-Ulysses)
};

/// Recompute of layers `first` to `last` (global numbers, inclusive) in place of Strategy::recompute.
struct RecomputeRule {
  int64_t first = 0, last = 0;
  Recompute preset = Recompute::none;
  std::vector<std::string> tensors;  ///< dropped beside what the preset drops, by name within the block
  bool operator==(const RecomputeRule&) const = default;
};

struct Strategy {
  int64_t dp = 1, tp = 1, pp = 1, cp = 1, ep = 1, etp = 1;
  int64_t virtual_stages = 1;  ///< model chunks per stage
  int64_t micro_batch = 1;     ///< sequences
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  bool sequence_parallel = false;
  int64_t zero_stage = 0;
  Recompute recompute = Recompute::none;
  std::vector<RecomputeRule> recompute_layers;
  int64_t zero_group = 0;  ///< ranks that share one copy of what ZeRO shards, neighbours in dp x cp; 0: all of them
  ContextKind context = ContextKind::ring;
  bool ragged_batch = false;          ///< the last micro-batches may hold masked sequences
  std::vector<int64_t> stage_layers;  ///< layers of each virtual stage; empty: as even as possible
  bool overlap = false;               ///< gradient reduction, parameter gathers and sends run beside the compute queue
  int64_t bucket_bytes = 0;           ///< gradients reduced together while backward still runs; 0: all after backward
  std::optional<DType> reduce_dtype;  ///< of gradients while ranks sum them; none: as they are accumulated
  /// Room for the rows that a rank sends to the experts of another, in multiples of their mean number.
  double moe_bound = 2;
  /// Of gradients while micro-batches are summed, and of what norm and optimizer read; none: as backward makes them.
  std::optional<DType> accumulate_dtype;

  int64_t devices() const { return dp * tp * pp * cp; }
  /// Ranks that hold the same weights: what gradients are reduced over.
  int64_t data_ranks() const { return dp * cp; }
  /// Ranks that share one copy of what ZeRO shards; 1 without ZeRO.
  int64_t shard_ranks() const { return zero_stage == 0 ? 1 : zero_group == 0 ? data_ranks() : zero_group; }
  /// Ranks that hold the same experts, and how many of them share one copy of what ZeRO shards (zero_group where it
  /// divides them).
  int64_t expert_copies() const { return dp * cp * tp / (ep * etp); }
  int64_t expert_shard_ranks() const {
    return zero_stage == 0 ? 1 : zero_group == 0 ? expert_copies() : std::gcd(expert_copies(), zero_group);
  }
  bool operator==(const Strategy&) const = default;
};

std::string_view name_of(Recompute recompute);
std::string_view name_of(ScheduleKind schedule);
std::string_view name_of(ContextKind context);

/// "dp=2,tp=1,pp=1,micro_batch=4,recompute=none,..." in the order of the struct: the degrees, schedule,
/// sequence_parallel, zero_stage and recompute always, the other keys where they differ from their default.
std::string to_text(const Strategy& strategy);

/// "dp=2 tp=1 pp=4 micro_batch=1 recompute=full": how people are shown a strategy. What the search varies, then every
/// other key that has not its default.
std::string short_text(const Strategy& strategy);

/// Which keys a strategy string named; `--fix` and `simulate --strategy` accept a subset of the keys.
struct StrategyText {
  Strategy strategy;
  std::vector<std::string> named;
  bool names(std::string_view key) const;
};

/// Parses "tp=8,pp=16,micro_batch=1,recompute=full". Lists are joined by "+" (stage_layers=3+2+2), recompute rules by "/"
/// (recompute_layers=0-3:full/4-7:activated+normed_2/8:none). Throws bad_input naming the key and what it accepts.
StrategyText parse_strategy(const std::string& text);

/// Most devices of a strategy or a machine: ranks and counts of groups must fit 32 bits with room to spare.
constexpr int64_t kMostDevices = int64_t{1} << 20;

/// Throws bad_input naming `source` and the key if a number is outside of what its key accepts, or if the devices
/// exceed kMostDevices.
void require_in_range(const Strategy& strategy, const std::string& source);

/// The `strategy` object of the command line's JSON: every key of the struct and `devices`.
std::string strategy_to_json(const Strategy& strategy);

}  // namespace foresail
