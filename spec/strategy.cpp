#include "spec/strategy.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <span>

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
/// Keys that most strategies leave alone: shown where they differ from their default.
constexpr std::array<NumberKey, 2> kFurtherNumberKeys{{{"zero_group", &Strategy::zero_group, 0, kMostDevices},
                                                       {"bucket_bytes", &Strategy::bucket_bytes, 0, int64_t{1} << 40}}};

struct FlagKey {
  std::string_view name;
  bool Strategy::*field;
};
constexpr std::array<FlagKey, 2> kFurtherFlags{
    {{"ragged_batch", &Strategy::ragged_batch}, {"overlap", &Strategy::overlap}}};

/// Of moe_bound: below 1 not even an even distribution fits.
constexpr double kLeastBound = 1, kMostBound = 1 << 20;
/// A key whose value is a floating-point type; left out where the type follows from others.
struct DtypeKey {
  std::string_view name;
  std::optional<DType> Strategy::*field;
};
constexpr std::array<DtypeKey, 2> kDtypes{
    {{"reduce_dtype", &Strategy::reduce_dtype}, {"accumulate_dtype", &Strategy::accumulate_dtype}}};

constexpr std::array<Recompute, 3> kRecomputes{Recompute::none, Recompute::selective, Recompute::full};
constexpr std::array<ScheduleKind, 5> kSchedules{ScheduleKind::one_f_one_b, ScheduleKind::gpipe,
                                                 ScheduleKind::interleaved, ScheduleKind::zb_h1, ScheduleKind::zb_v};
constexpr std::array<ContextKind, 2> kContexts{ContextKind::ring, ContextKind::all_to_all};
constexpr int64_t kMostLayers = 1 << 20;

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

/// The one of `values` whose name is `text`.
template <typename Values>
auto parse_choice(std::string_view key, const std::string& text, const Values& values, const std::string& source) {
  std::vector<std::string_view> names;
  for (const auto value : values) {
    if (name_of(value) == text) return value;
    names.push_back(name_of(value));
  }
  refuse(source, key, "'" + text + "' is unknown", fmt::format("use {}", fmt::join(names, " or ")));
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(trimmed(std::string_view(text).substr(begin, end - begin)));
    begin = end + 1;
  }
  return parts;
}

std::vector<int64_t> parse_stage_layers(const std::string& text, const std::string& source) {
  std::vector<int64_t> layers;
  for (const std::string& part : split(text, '+')) {
    layers.push_back(parse_number({"stage_layers", nullptr, 1, kMostLayers}, part, source));
  }
  return layers;
}

/// "0-3:full", "5:normed_1+activated"
RecomputeRule parse_rule(const std::string& text, const std::string& source) {
  const NumberKey layer{"recompute_layers", nullptr, 0, kMostLayers};
  const size_t colon = text.find(':');
  if (colon == std::string::npos) {
    refuse(source, layer.name, "'" + text + "' is not of the form LAYERS:WHAT", "write 0-3:full or 5:activated");
  }
  const std::vector<std::string> range = split(text.substr(0, colon), '-');
  RecomputeRule rule;
  rule.first = parse_number(layer, range.front(), source);
  rule.last = parse_number(layer, range.back(), source);
  if (range.size() > 2 || rule.last < rule.first) {
    refuse(source, layer.name, "'" + text.substr(0, colon) + "' is no range of layers", "write FIRST-LAST");
  }
  std::set<std::string> seen;
  int presets = 0;
  for (const std::string& what : split(text.substr(colon + 1), '+')) {
    if (what.empty()) {
      refuse(source, layer.name, "'" + text + "' names an empty tensor", "write 0-3:full or 5:activated+normed_2");
    }
    if (!seen.insert(what).second) {
      refuse(source, layer.name, "'" + text + "' names " + what + " twice", "name it once");
    }
    const auto preset = std::find_if(kRecomputes.begin(), kRecomputes.end(),
                                     [&](Recompute recompute) { return name_of(recompute) == what; });
    if (preset == kRecomputes.end()) {
      rule.tensors.push_back(what);
      continue;
    }
    rule.preset = *preset;
    if (++presets > 1) refuse(source, layer.name, "'" + text + "' names two presets", "name one");
  }
  return rule;
}

std::vector<RecomputeRule> parse_rules(const std::string& text, const std::string& source) {
  std::vector<RecomputeRule> rules;
  for (const std::string& part : split(text, '/')) {
    rules.push_back(parse_rule(part, source));
    if (rules.size() > 1 && rules.back().first <= rules[rules.size() - 2].last) {
      refuse(source, "recompute_layers", "layer ranges overlap or descend", "list every layer once, in order");
    }
  }
  return rules;
}

bool parse_flag(std::string_view key, const std::string& text, const std::string& source) {
  if (text == "true" || text == "false") return text == "true";
  refuse(source, key, "'" + text + "' is neither true nor false", "use true or false");
}

double parse_bound(const std::string& text, const std::string& source) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc{} && end == text.data() + text.size();
  if (!whole || !(value >= kLeastBound && value <= kMostBound)) {
    refuse(source, "moe_bound", "'" + text + "' is no number in range",
           fmt::format("give a number from {} to {}", kLeastBound, kMostBound));
  }
  return value;
}

DType parse_float_type(std::string_view key, const std::string& text, const std::string& source) {
  const std::optional<DType> type = dtype_from_name(text);
  if (type && *type != DType::i32) return *type;
  refuse(source, key, "'" + text + "' is no floating-point type", "use f64, f32, bf16 or f16");
}

void set_key(Strategy& strategy, const std::string& key, const std::string& text, const std::string& source) {
  for (const std::span<const NumberKey> numbers : {std::span<const NumberKey>(kNumberKeys), {kFurtherNumberKeys}}) {
    for (const NumberKey& number : numbers) {
      if (number.name != key) continue;
      strategy.*number.field = parse_number(number, text, source);
      return;
    }
  }
  for (const FlagKey& flag : kFurtherFlags) {
    if (flag.name == key) {
      strategy.*flag.field = parse_flag(key, text, source);
      return;
    }
  }
  for (const DtypeKey& dtype : kDtypes) {
    if (dtype.name == key) {
      strategy.*dtype.field = parse_float_type(key, text, source);
      return;
    }
  }
  if (key == "moe_bound") {
    strategy.moe_bound = parse_bound(text, source);
  } else if (key == "schedule") {
    strategy.schedule = parse_choice(key, text, kSchedules, source);
  } else if (key == "recompute") {
    strategy.recompute = parse_choice(key, text, kRecomputes, source);
  } else if (key == "context") {
    strategy.context = parse_choice(key, text, kContexts, source);
  } else if (key == "sequence_parallel") {
    strategy.sequence_parallel = parse_flag(key, text, source);
  } else if (key == "stage_layers") {
    strategy.stage_layers = parse_stage_layers(text, source);
  } else if (key == "recompute_layers") {
    strategy.recompute_layers = parse_rules(text, source);
  } else {
    refuse(source, key, "is unknown",
           "use dp, tp, pp, cp, ep, etp, virtual_stages, micro_batch, schedule, sequence_parallel, zero_stage, "
           "recompute, recompute_layers, zero_group, context, ragged_batch, stage_layers, overlap, bucket_bytes, "
           "reduce_dtype, accumulate_dtype, moe_bound");
  }
}

}  // namespace

std::string_view name_of(Recompute recompute) {
  switch (recompute) {
    case Recompute::none: return "none";
    case Recompute::selective: return "selective";
    case Recompute::full: return "full";
  }
  return "";
}

std::string_view name_of(ScheduleKind schedule) {
  switch (schedule) {
    case ScheduleKind::one_f_one_b: return "1f1b";
    case ScheduleKind::gpipe: return "gpipe";
    case ScheduleKind::interleaved: return "interleaved";
    case ScheduleKind::zb_h1: return "zb-h1";
    case ScheduleKind::zb_v: return "zb-v";
  }
  return "";
}

std::string_view name_of(ContextKind context) { return context == ContextKind::ring ? "ring" : "all_to_all"; }

namespace {

std::string text_of(const RecomputeRule& rule) {
  std::vector<std::string> what;
  if (rule.preset != Recompute::none || rule.tensors.empty()) what.emplace_back(name_of(rule.preset));
  what.insert(what.end(), rule.tensors.begin(), rule.tensors.end());
  const std::string layers =
      rule.first == rule.last ? std::to_string(rule.first) : fmt::format("{}-{}", rule.first, rule.last);
  return fmt::format("{}:{}", layers, fmt::join(what, "+"));
}

/// "key=value" of every key that `to_text` leaves out at its default.
std::vector<std::string> further_items(const Strategy& s) {
  const Strategy usual;
  std::vector<std::string> items;
  if (!s.recompute_layers.empty()) {
    std::vector<std::string> rules;
    for (const RecomputeRule& rule : s.recompute_layers) rules.push_back(text_of(rule));
    items.push_back(fmt::format("recompute_layers={}", fmt::join(rules, "/")));
  }
  for (const NumberKey& key : kFurtherNumberKeys) {
    if (s.*key.field != usual.*key.field) items.push_back(fmt::format("{}={}", key.name, s.*key.field));
  }
  if (s.context != usual.context) items.push_back(fmt::format("context={}", name_of(s.context)));
  for (const FlagKey& key : kFurtherFlags) {
    if (s.*key.field) items.push_back(fmt::format("{}=true", key.name));
  }
  if (!s.stage_layers.empty()) items.push_back(fmt::format("stage_layers={}", fmt::join(s.stage_layers, "+")));
  for (const DtypeKey& key : kDtypes) {
    if (s.*key.field) items.push_back(fmt::format("{}={}", key.name, name_of(*(s.*key.field))));
  }
  if (s.moe_bound != usual.moe_bound) items.push_back(fmt::format("moe_bound={}", s.moe_bound));
  return items;
}

}  // namespace

std::string to_text(const Strategy& s) {
  std::string text = fmt::format(
      "dp={},tp={},pp={},cp={},ep={},etp={},virtual_stages={},micro_batch={},schedule={},sequence_parallel={},"
      "zero_stage={},recompute={}",
      s.dp, s.tp, s.pp, s.cp, s.ep, s.etp, s.virtual_stages, s.micro_batch, name_of(s.schedule), s.sequence_parallel,
      s.zero_stage, name_of(s.recompute));
  for (const std::string& item : further_items(s)) text += "," + item;
  return text;
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
  for (const std::string& item : further_items(s)) text += " " + item;
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
  for (const NumberKey& key : kFurtherNumberKeys) require_in_range(key, strategy.*key.field, source);
  if (!(strategy.moe_bound >= kLeastBound && strategy.moe_bound <= kMostBound)) {
    refuse(source, "moe_bound", fmt::format("{} is out of range", strategy.moe_bound),
           fmt::format("give a number from {} to {}", kLeastBound, kMostBound));
  }
  int64_t devices = 1;
  for (const int64_t degree : {strategy.dp, strategy.tp, strategy.pp, strategy.cp}) {
    devices *= degree;  // both at most 2^20 here, so the product cannot overflow
    if (devices > kMostDevices) {
      throw_bad_input(source, fmt::format("needs more than {} devices", kMostDevices), "lower dp, tp, pp or cp");
    }
  }
}

}  // namespace foresail
