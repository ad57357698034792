// A parallel strategy: every choice that the planner makes and the runtime obeys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace foresail {

enum class ScheduleKind : uint8_t { one_f_one_b };
enum class Recompute : uint8_t {
  none,  ///< every tensor that backward needs is kept
  full,  ///< only a block's input is kept; backward replays the block
};

struct Strategy {
  int64_t dp = 1, tp = 1, pp = 1, cp = 1, ep = 1, etp = 1;
  int64_t virtual_stages = 1;
  int64_t micro_batch = 1;  ///< sequences
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  bool sequence_parallel = false;
  int64_t zero_stage = 0;
  Recompute recompute = Recompute::none;

  int64_t devices() const { return dp * tp * pp * cp; }
  bool operator==(const Strategy&) const = default;
};

std::string_view name_of(Recompute recompute);
std::string_view name_of(ScheduleKind schedule);

/// "dp=2,tp=1,pp=1,micro_batch=4,recompute=none,..." with every key, in the order of the struct.
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

/// Parses "tp=8,pp=16,micro_batch=1,recompute=full". Throws bad_input naming the key and what it accepts. Values whose
/// part is not built yet are refused saying so where the struct cannot hold them (schedule=gpipe, recompute=selective);
/// where it can (cp=2, zero_stage=1), they are parsed, and `legal` gives the reason.
StrategyText parse_strategy(const std::string& text);

/// Most devices of a strategy or a machine: ranks and counts of groups must fit 32 bits with room to spare.
constexpr int64_t kMostDevices = int64_t{1} << 20;

/// Throws bad_input naming `source` and the key if a number is outside of what its key accepts, or if the devices
/// exceed kMostDevices.
void require_in_range(const Strategy& strategy, const std::string& source);

/// The `strategy` object of the command line's JSON: every key of the struct and `devices`.
std::string strategy_to_json(const Strategy& strategy);

}  // namespace foresail
