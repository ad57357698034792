#include "core/json.h"
#include "spec/forms_json.h"
#include "workflow/candidate_json.h"
#include "workflow/validate.h"

namespace foresail {
namespace {

Json source_form(const ValidatedSource& source) {
  return {{"stack", source.stack},
          {"rows", source.rows},
          {"used", source.used},
          {"refused", source.refused},
          {"mape", optional_form(source.mape)},
          {"median_ape", optional_form(source.median_ape)},
          {"p90_ape", optional_form(source.p90_ape)},
          {"max_ape", optional_form(source.max_ape)},
          {"bias", optional_form(source.bias)},
          {"groups", source.groups},
          {"spearman_mean", optional_form(source.spearman_mean)},
          {"regret_mean", optional_form(source.regret_mean)},
          {"regret_max", optional_form(source.regret_max)},
          {"memory_mape", optional_form(source.memory_mape)},
          {"feasible_called_infeasible", source.feasible_called_infeasible},
          {"infeasible_called_feasible", nullptr},  // no row says that a plan failed
          {"interval_coverage", optional_form(source.interval_coverage)},
          {"interval_width", optional_form(source.interval_width)},
          {"stated_plans", source.stated_plans},
          {"stated_plan_mape", optional_form(source.stated_plan_mape)}};
}

Json row_form(const ValidatedRow& row) {
  const bool used = row.refused.empty();
  const auto number = [used](double value) { return used ? Json(value) : Json(nullptr); };
  return {{"id", row.id},
          {"refused", used ? Json(nullptr) : Json(row.refused)},
          {"stack", row.stack},
          {"machine", row.machine.empty() ? Json(nullptr) : Json(row.machine)},
          {"strategy", used ? strategy_form(row.strategy) : Json(nullptr)},
          {"assumed", Json(row.assumed)},
          {"measured_seconds", row.measured_seconds > 0 ? Json(row.measured_seconds) : Json(nullptr)},
          {"predicted_seconds", number(row.predicted_seconds)},
          {"low", number(row.low)},
          {"high", number(row.high)}};
}

}  // namespace

std::string validate_result_to_json(const ValidateResult& result) {
  Json document;
  document["sources"] = Json::array();
  for (const ValidatedSource& source : result.sources) document["sources"].push_back(source_form(source));
  document["rows"] = Json::array();
  for (const ValidatedRow& row : result.rows) document["rows"].push_back(row_form(row));
  return document.dump(2) + "\n";
}

}  // namespace foresail
