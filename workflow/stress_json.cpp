#include "core/json.h"
#include "workflow/stress.h"

namespace foresail {
namespace {

Json number_or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

}  // namespace

std::string stress_result_to_json(const StressResult& result) {
  Json checks = Json::array();
  for (const StressCheck& check : result.checks) {
    checks.push_back({{"name", check.name},
                      {"predicted", number_or_null(check.predicted)},
                      {"measured", number_or_null(check.measured)},
                      {"unit", check.unit},
                      {"passed", check.passed},
                      {"why", check.why}});
  }
  return Json{{"verdict", result.verdict}, {"checks", checks}, {"plan", result.plan}, {"seconds", result.seconds}}.dump(2) + "\n";
}

}  // namespace foresail
