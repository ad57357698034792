#include "workflow/candidate_json.h"

#include "spec/forms_json.h"

namespace foresail {
namespace {

Json optional_bytes(const std::optional<int64_t>& value) { return value ? Json(*value) : Json(nullptr); }

Json budget_form(const Budget& budget) {
  Json form;
  form["train_seconds"] = optional_form(budget.train_seconds);
  form["device_hours"] = optional_form(budget.device_hours);
  form["usd"] = optional_form(budget.usd);
  form["usd_low"] = optional_form(budget.usd_low);
  form["usd_high"] = optional_form(budget.usd_high);
  form["usd_by_cause"] = budget.usd_by_cause.empty() ? Json(nullptr) : Json(budget.usd_by_cause);
  form["energy_kwh"] = optional_form(budget.energy_kwh);
  form["goodput"] = optional_form(budget.goodput);
  form["expected_failures"] = optional_form(budget.expected_failures);
  form["checkpoint_interval_seconds"] = optional_form(budget.checkpoint_interval_seconds);
  form["expected_lost_seconds_per_failure"] = optional_form(budget.expected_lost_seconds_per_failure);
  form["checkpoint_bytes"] = optional_bytes(budget.checkpoint_bytes);
  form["storage_usd"] = nullptr;
  form["capacity"] = {{"peak_watts", optional_form(budget.peak_watts)},
                      {"nic_bytes_per_second", nullptr},
                      {"storage_bytes", optional_bytes(budget.storage_bytes)},
                      {"storage_bytes_per_second", nullptr}};
  return form;
}

}  // namespace

Json optional_form(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json candidate_form(const Candidate& candidate, int64_t baseline_devices) {
  Json predicted = prediction_form(candidate.predicted);
  if (candidate.predicted.mfu == 0) predicted["mfu"] = predicted["hfu"] = nullptr;  // the device's peak is not known
  if (candidate.predicted.model_flops_per_second_per_device == 0)
    predicted["model_flops_per_second_per_device"] = nullptr;
  if (candidate.budget.goodput && candidate.predicted.mfu > 0) {
    predicted["effective_utilization"] = candidate.predicted.mfu * *candidate.budget.goodput;
  }
  if (baseline_devices > 0) {
    Json& scaling = predicted["scaling"];
    scaling["baseline_devices"] = baseline_devices;
    scaling["efficiency"] = candidate.efficiency;
    const bool first = candidate.strategy.devices() == baseline_devices;
    scaling["marginal_efficiency"] = first ? Json(nullptr) : Json(candidate.marginal_efficiency);
  }
  return {{"strategy", strategy_form(candidate.strategy)},
          {"predicted", predicted},
          {"budget", budget_form(candidate.budget)}};
}

}  // namespace foresail
