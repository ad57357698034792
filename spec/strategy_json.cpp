// The `strategy` object of plans and of the command line's JSON.
#include "core/error.h"
#include "core/json.h"
#include "spec/forms_json.h"
#include "spec/strategy.h"

namespace foresail {
namespace {

constexpr double kMostBound = 1 << 20;

/// The value of `key` in a strategy's text, empty if it is not there.
std::string text_value(const Strategy& strategy, const std::string& key) {
  const std::string text = "," + to_text(strategy) + ",";
  const size_t at = text.find("," + key + "=");
  if (at == std::string::npos) return "";
  const size_t begin = at + key.size() + 2;
  return text.substr(begin, text.find(',', begin) - begin);
}

/// Keys whose values are texts, in the words of parse_strategy.
struct TextKey {
  const char* name;
  bool may_be_empty;  ///< written so at its default
  void (*take)(Strategy& to, const Strategy& from);
};
constexpr TextKey kTextKeys[] = {
    {"schedule", false, [](Strategy& to, const Strategy& from) { to.schedule = from.schedule; }},
    {"recompute", false, [](Strategy& to, const Strategy& from) { to.recompute = from.recompute; }},
    {"recompute_layers", true, [](Strategy& to, const Strategy& from) { to.recompute_layers = from.recompute_layers; }},
    {"context", false, [](Strategy& to, const Strategy& from) { to.context = from.context; }},
    {"stage_layers", true, [](Strategy& to, const Strategy& from) { to.stage_layers = from.stage_layers; }},
    {"reduce_dtype", true, [](Strategy& to, const Strategy& from) { to.reduce_dtype = from.reduce_dtype; }},
    {"accumulate_dtype", true, [](Strategy& to, const Strategy& from) { to.accumulate_dtype = from.accumulate_dtype; }},
};

/// Named choices are read by parse_strategy, so that text and JSON accept the same.
Strategy with_choice(const Strategy& before, const JsonObject& object, const TextKey& text_key) {
  const std::string key = text_key.name;
  Strategy after = before;
  if (!object.has(key)) return after;
  const std::string choice = object.require_string(key);
  if (choice.empty() && text_key.may_be_empty) return after;
  if (choice.find_first_of(",=") != std::string::npos) object.fail(key, "'" + choice + "' is unknown", "correct it");
  try {
    text_key.take(after, parse_strategy(key + "=" + choice).strategy);
  } catch (const Error& error) {
    object.fail(key, error.cause(), error.mend());  // names the file, which parse_strategy does not know
  }
  return after;
}

}  // namespace

Json strategy_form(const Strategy& s) {
  Json json{{"dp", s.dp},
            {"tp", s.tp},
            {"pp", s.pp},
            {"cp", s.cp},
            {"ep", s.ep},
            {"etp", s.etp},
            {"virtual_stages", s.virtual_stages},
            {"micro_batch", s.micro_batch},
            {"sequence_parallel", s.sequence_parallel},
            {"zero_stage", s.zero_stage},
            {"zero_group", s.zero_group},
            {"ragged_batch", s.ragged_batch},
            {"overlap", s.overlap},
            {"bucket_bytes", s.bucket_bytes},
            {"moe_bound", s.moe_bound},
            {"devices", s.devices()}};
  for (const TextKey& key : kTextKeys) json[key.name] = text_value(s, key.name);
  json["context"] = std::string(name_of(s.context));
  return json;
}

Strategy strategy_from(const JsonObject& object) {
  const Json written = strategy_form({});
  std::vector<std::string> known;
  for (const auto& [key, value] : written.items()) known.push_back(key);
  object.refuse_unknown_keys(known);
  Strategy s;
  for (const TextKey& key : kTextKeys) s = with_choice(s, object, key);
  s.dp = object.get_int("dp", s.dp, 1, kMostDevices);
  s.tp = object.get_int("tp", s.tp, 1, kMostDevices);
  s.pp = object.get_int("pp", s.pp, 1, kMostDevices);
  s.cp = object.get_int("cp", s.cp, 1, kMostDevices);
  s.ep = object.get_int("ep", s.ep, 1, kMostDevices);
  s.etp = object.get_int("etp", s.etp, 1, kMostDevices);
  s.virtual_stages = object.get_int("virtual_stages", s.virtual_stages, 1, kMostDevices);
  s.micro_batch = object.get_int("micro_batch", s.micro_batch, 1, kMostDevices);
  s.sequence_parallel = object.get_bool("sequence_parallel", s.sequence_parallel);
  s.zero_stage = object.get_int("zero_stage", s.zero_stage, 0, 3);
  s.zero_group = object.get_int("zero_group", s.zero_group, 0, kMostDevices);
  s.ragged_batch = object.get_bool("ragged_batch", s.ragged_batch);
  s.overlap = object.get_bool("overlap", s.overlap);
  s.bucket_bytes = object.get_int("bucket_bytes", s.bucket_bytes, 0, int64_t{1} << 40);
  s.moe_bound = object.get_number("moe_bound", s.moe_bound, 1, kMostBound);
  require_in_range(s, object.source() + ": strategy");
  if (object.get_int("devices", s.devices(), 1, kMostDevices) != s.devices()) {
    object.fail("devices", "is not dp x tp x pp x cp", "correct or remove it");
  }
  return s;
}

std::string strategy_to_json(const Strategy& strategy) { return json_text(strategy_form(strategy)); }

}  // namespace foresail
