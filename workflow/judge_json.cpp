#include "core/json.h"
#include "workflow/judge.h"

namespace foresail {
namespace {

Json number_or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

}  // namespace

std::string checks_to_json(const std::vector<StressCheck>& checks) {
  Json list = Json::array();
  for (const StressCheck& check : checks) {
    list.push_back({{"name", check.name},
                    {"predicted", number_or_null(check.predicted)},
                    {"measured", number_or_null(check.measured)},
                    {"unit", check.unit},
                    {"passed", check.passed},
                    {"why", check.why}});
  }
  return list.dump();
}

}  // namespace foresail
