#include "spec/strategy.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>

#include "core/error.h"

namespace foresail {
namespace {

/// A key whose value is a whole number.
struct NumberKey {
  std::string_view name;
  int64_t Strategy::*field;
  int64_t least, most;
};

constexpr std::array<NumberKey, 9> kNumberKeys{{{"dp", &Strategy::dp, 1, kMostDevices},
                                                {"tp", &Strategy::tp, 1, kMostDevices},
                                                {"pp", &Strategy::pp, 1, kMostDevices},
                                                {"cp", &Strategy::cp, 1, kMostDevices},
                                                {"ep", &Strategy::ep, 1, kMostDevices},
                                                {"etp", &Strategy::etp, 1, kMostDevices},
                                                {"virtual_stages", &Strategy::virtual_stages, 1, 1024},
                                                {"micro_batch", &Strategy::micro_batch, 1, int64_t{1} << 20},
                                                {"zero_stage", &Strategy::zero_stage, 0, 3}}};

constexpr std::array<Recompute, 2> kRecomputes{Recompute::none, Recompute::full};
constexpr std::array<std::string_view, 1> kLaterRecomputes{"selective"};
constexpr std::array<ScheduleKind, 1> kSchedules{ScheduleKind::one_f_one_b};
constexpr std::array<std::string_view, 4> kLaterSchedules{"gpipe", "interleaved", "zb-h1", "zb-v"};

std::string trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t") - begin + 1));
}

[[noreturn]] void refuse(const std::string& source, std::string_view key, const std::string& cause,
                         const std::string& mend) {
  throw_bad_input(fmt::format("{}: key '{}'", source, key), cause, mend);
}

void require_in_range(const NumberKey& key, int64_t value, const std::string& source) {
  if (value >= key.least && value <= key.most) return;
  refuse(source, key.name, fmt::format("{} is out of range", value),
         fmt::format("give a whole number from {} to {}", key.least, key.most));
}

int64_t parse_number(const NumberKey& key, const std::string& text, const std::string& source) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    refuse(source, key.name, "'" + text + "' is not a whole number in range",
           fmt::format("give a whole number from {} to {}", key.least, key.most));
  }
  require_in_range(key, value, source);
  return value;
}

/// The one of `values` whose name is `text`; `later` are names of values that are known but not built yet.
template <typename Values, typename Later>
auto parse_choice(std::string_view key, const std::string& text, const Values& values, const Later& later,
                  const std::string& source) {
  std::vector<std::string_view> names;
  for (const auto value : values) {
    if (name_of(value) == text) return value;
    names.push_back(name_of(value));
  }
  const std::string mend = fmt::format("use {}", fmt::join(names, " or "));
  if (std::find(later.begin(), later.end(), text) != later.end()) {
    refuse(source, key, "'" + text + "' is not built yet", mend);
  }
  refuse(source, key, "'" + text + "' is unknown", mend);
}

bool parse_flag(std::string_view key, const std::string& text, const std::string& source) {
  if (text == "true" || text == "false") return text == "true";
  refuse(source, key, "'" + text + "' is neither true nor false", "use true or false");
}

void set_key(Strategy& strategy, const std::string& key, const std::string& text, const std::string& source) {
  for (const NumberKey& number : kNumberKeys) {
    if (number.name == key) {
      strategy.*number.field = parse_number(number, text, source);
      return;
    }
  }
  if (key == "schedule") {
    strategy.schedule = parse_choice(key, text, kSchedules, kLaterSchedules, source);
  } else if (key == "recompute") {
    strategy.recompute = parse_choice(key, text, kRecomputes, kLaterRecomputes, source);
  } else if (key == "sequence_parallel") {
    strategy.sequence_parallel = parse_flag(key, text, source);
  } else {
    refuse(
        source, key, "is unknown",
        "use dp, tp, pp, cp, ep, etp, virtual_stages, micro_batch, schedule, sequence_parallel, zero_stage, recompute");
  }
}

}  // namespace

std::string_view name_of(Recompute recompute) {
  switch (recompute) {
    case Recompute::none: return "none";
    case Recompute::full: return "full";
  }
  return "";
}

std::string_view name_of(ScheduleKind schedule) {
  switch (schedule) {
    case ScheduleKind::one_f_one_b: return "1f1b";
  }
  return "";
}

std::string to_text(const Strategy& s) {
  return fmt::format(
      "dp={},tp={},pp={},cp={},ep={},etp={},virtual_stages={},micro_batch={},schedule={},sequence_parallel={},"
      "zero_stage={},recompute={}",
      s.dp, s.tp, s.pp, s.cp, s.ep, s.etp, s.virtual_stages, s.micro_batch, name_of(s.schedule), s.sequence_parallel,
      s.zero_stage, name_of(s.recompute));
}

std::string short_text(const Strategy& s) {
  std::string text = fmt::format("dp={} tp={} pp={} micro_batch={} recompute={}", s.dp, s.tp, s.pp, s.micro_batch,
                                 name_of(s.recompute));
  const Strategy usual;
  constexpr std::array<std::string_view, 4> kVaried{"dp", "tp", "pp", "micro_batch"};
  for (const NumberKey& key : kNumberKeys) {
    const bool shown = std::find(kVaried.begin(), kVaried.end(), key.name) != kVaried.end();
    if (!shown && s.*key.field != usual.*key.field) text += fmt::format(" {}={}", key.name, s.*key.field);
  }
  if (s.schedule != usual.schedule) text += fmt::format(" schedule={}", name_of(s.schedule));
  if (s.sequence_parallel) text += " sequence_parallel=true";
  return text;
}

bool StrategyText::names(std::string_view key) const {
  return std::find(named.begin(), named.end(), key) != named.end();
}

StrategyText parse_strategy(const std::string& text) {
  const std::string source = "strategy '" + text.substr(0, 200) + "'";
  StrategyText result;
  if (trimmed(text).empty()) return result;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = trimmed(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    const size_t equals = item.find('=');
    if (equals == std::string::npos) {
      throw_bad_input(source, "'" + item + "' is not of the form key=value", "write tp=2,micro_batch=4");
    }
    const std::string key = trimmed(item.substr(0, equals));
    if (result.names(key)) refuse(source, key, "is given twice", "give it once");
    set_key(result.strategy, key, trimmed(item.substr(equals + 1)), source);
    result.named.push_back(key);
  }
  require_in_range(result.strategy, source);
  return result;
}

void require_in_range(const Strategy& strategy, const std::string& source) {
  for (const NumberKey& key : kNumberKeys) require_in_range(key, strategy.*key.field, source);
  int64_t devices = 1;
  for (const int64_t degree : {strategy.dp, strategy.tp, strategy.pp, strategy.cp}) {
    devices *= degree;  // both at most 2^20 here, so the product cannot overflow
    if (devices > kMostDevices) {
      throw_bad_input(source, fmt::format("needs more than {} devices", kMostDevices), "lower dp, tp, pp or cp");
    }
  }
}

}  // namespace foresail
