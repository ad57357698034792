// The `strategy` object of plans and of the command line's JSON.
#include "core/error.h"
#include "core/json.h"
#include "spec/forms_json.h"
#include "spec/strategy.h"

namespace foresail {
namespace {

/// Named choices are read by parse_strategy, so that text and JSON accept the same.
Strategy with_choice(const Strategy& before, const JsonObject& object, const std::string& key,
                     void (*take)(Strategy&, const Strategy&)) {
  Strategy after = before;
  if (!object.has(key)) return after;
  const std::string choice = object.require_string(key);
  if (choice.find_first_of(",=") != std::string::npos) object.fail(key, "'" + choice + "' is unknown", "correct it");
  try {
    take(after, parse_strategy(key + "=" + choice).strategy);
  } catch (const Error& error) {
    object.fail(key, error.cause(), error.mend());  // names the file, which parse_strategy does not know
  }
  return after;
}

}  // namespace

Json strategy_form(const Strategy& s) {
  return {{"dp", s.dp},
          {"tp", s.tp},
          {"pp", s.pp},
          {"cp", s.cp},
          {"ep", s.ep},
          {"etp", s.etp},
          {"virtual_stages", s.virtual_stages},
          {"micro_batch", s.micro_batch},
          {"schedule", std::string(name_of(s.schedule))},
          {"sequence_parallel", s.sequence_parallel},
          {"zero_stage", s.zero_stage},
          {"recompute", std::string(name_of(s.recompute))},
          {"devices", s.devices()}};
}

Strategy strategy_from(const JsonObject& object) {
  object.refuse_unknown_keys({"dp", "tp", "pp", "cp", "ep", "etp", "virtual_stages", "micro_batch", "schedule",
                              "sequence_parallel", "zero_stage", "recompute", "devices"});
  Strategy s =
      with_choice({}, object, "schedule", [](Strategy& to, const Strategy& from) { to.schedule = from.schedule; });
  s = with_choice(s, object, "recompute", [](Strategy& to, const Strategy& from) { to.recompute = from.recompute; });
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
  require_in_range(s, object.source() + ": strategy");
  if (object.get_int("devices", s.devices(), 1, kMostDevices) != s.devices()) {
    object.fail("devices", "is not dp x tp x pp x cp", "correct or remove it");
  }
  return s;
}

std::string strategy_to_json(const Strategy& strategy) { return json_text(strategy_form(strategy)); }

}  // namespace foresail
