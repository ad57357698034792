#include "core/json.h"
#include "workflow/report.h"

namespace foresail {

std::string report_to_json(const ReportResult& result) {
  const auto optional = [](const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); };
  const Json json{{"run", result.run},
                  {"verdict", result.passed() ? "pass" : "fail"},
                  {"steps", result.steps},
                  {"tokens", result.tokens},
                  {"skipped_steps", result.skipped_steps},
                  {"first_loss", result.first_loss},
                  {"loss", result.loss},
                  {"validation_loss", optional(result.validation_loss)},
                  {"step_seconds_median", result.step_seconds_median},
                  {"tokens_per_second", result.tokens_per_second},
                  {"mfu", optional(result.mfu)},
                  {"checks", parse_json(checks_to_json(result.checks), "checks")}};
  return json.dump(2) + "\n";
}

}  // namespace foresail
