// foresail.plan/1
#include <algorithm>

#include <fmt/format.h>

#include "core/file.h"
#include "core/json.h"
#include "spec/forms_json.h"
#include "spec/plan.h"

namespace foresail {
namespace {

constexpr const char* kSchema = "foresail.plan/1";

bool is_digest(const std::string& text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::vector<std::string> program_digests_from(const JsonObject& object, int64_t stages) {
  std::vector<std::string> digests = object.get_strings("program_digests");
  if (!std::all_of(digests.begin(), digests.end(), is_digest)) {
    object.fail("program_digests", "holds a text that is not 32 hexadecimal digits", "plan again");
  }
  if (static_cast<int64_t>(digests.size()) != stages) {
    object.fail("program_digests", fmt::format("holds {} digests for {} stages", digests.size(), stages), "plan again");
  }
  return digests;
}

}  // namespace

std::string plan_to_json(const Plan& plan) {
  return json_text({{"schema", kSchema},
                    {"foresail_version", plan.foresail_version},
                    {"model_name", plan.model_name},
                    {"machine_name", plan.machine_name},
                    {"machine_digest", plan.machine_digest},
                    {"steps", plan.steps},
                    {"strategy", strategy_form(plan.strategy)},
                    {"predicted", prediction_form(plan.predicted)},
                    {"job", job_form(plan.job)},
                    {"target", target_form(plan.target)},
                    {"program_digests", Json(plan.program_digests)},
                    {"model_config", plan.model_config}});
}

Plan plan_from_json(const std::string& text, const std::string& source) {
  const Json value = parse_json(text, source);
  const JsonObject object(value, source);
  object.require_schema(kSchema);
  object.refuse_unknown_keys({"schema", "foresail_version", "model_name", "machine_name", "machine_digest", "steps",
                              "strategy", "predicted", "job", "target", "program_digests", "model_config"});
  Plan plan;
  plan.foresail_version = object.get_string("foresail_version", "");
  plan.model_name = object.get_string("model_name", "");
  plan.machine_name = object.get_string("machine_name", "");
  plan.machine_digest = object.get_string("machine_digest", "");
  plan.steps = object.require_int("steps", 0, kMostSteps);
  plan.strategy = strategy_from(object.require_object("strategy"));
  plan.predicted = prediction_from(object.require_object("predicted"));
  plan.job = job_from(object.require_object("job"));
  plan.target = target_from(object.require_object("target"));
  plan.program_digests = program_digests_from(object, plan.strategy.pp);
  plan.model_config = object.require_string("model_config");
  return plan;
}

Plan load_plan(const std::filesystem::path& path) { return plan_from_json(read_file(path), path.string()); }

}  // namespace foresail
