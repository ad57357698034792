#include "core/json.h"
#include "spec/forms_json.h"
#include "workflow/candidate_json.h"
#include "workflow/plan.h"

namespace foresail {
namespace {

Json frontier_form(const SearchResult& search) {
  Json list = Json::array();
  for (const FrontierPoint& point : search.frontier) {
    list.push_back({{"devices", point.devices},
                    {"train_seconds", optional_form(point.train_seconds)},
                    {"usd", optional_form(point.usd)},
                    {"efficiency", point.efficiency},
                    {"step_seconds", point.step_seconds},
                    {"strategy", strategy_form(point.strategy)}});
  }
  return list;
}

Json searched_form(const SearchResult& search) {
  return {{"strategies", search.strategies}, {"evaluated", search.evaluated}, {"bounded", search.bounded},
          {"simulated", search.simulated},   {"mixed", search.mixed},         {"refused", search.refused},
          {"illegal", search.illegal},       {"seconds", search.seconds}};
}

}  // namespace

std::string plan_result_to_json(const PlanResult& result) {
  Json document;
  Json& plans = document["plans"] = Json::array();
  for (const Candidate& candidate : result.search.plans) {
    plans.push_back(candidate_form(candidate, result.search.baseline_devices));
  }
  document["frontier"] = frontier_form(result.search);
  document["advice"] = nullptr;
  document["searched"] = searched_form(result.search);
  const Job& job = result.request.job;
  document["job"] = {{"model", result.request.model.name},
                     {"sequence_length", job.sequence_length},
                     {"global_batch", job.global_batch},
                     {"global_batch_reason", result.batch_reason.empty() ? Json(nullptr) : Json(result.batch_reason)},
                     {"precision", job.precision}};
  if (result.search.infeasible) {
    const Infeasible& failure = *result.search.infeasible;
    document["infeasible"] = {{"limit", failure.limit},
                              {"explanation", failure.explanation},
                              {"nearest", failure.nearest ? candidate_form(*failure.nearest, 0) : Json(nullptr)}};
  } else {
    document["infeasible"] = nullptr;
  }
  return document.dump(2) + "\n";
}

}  // namespace foresail
