#include "core/json.h"
#include "workflow/stress.h"

namespace foresail {

std::string stress_result_to_json(const StressResult& result) {
  const Json checks = parse_json(checks_to_json(result.checks), "checks");
  const Json json{{"verdict", result.verdict}, {"checks", checks}, {"plan", result.plan}, {"seconds", result.seconds}};
  return json.dump(2) + "\n";
}

}  // namespace foresail
