#include "core/json.h"
#include "workflow/candidate_json.h"
#include "workflow/simulate.h"

namespace foresail {

std::string simulate_result_to_json(const SimulateResult& result) {
  Json document;
  document["plans"] = Json::array({candidate_form(result.candidate, 0)});
  document["frontier"] = Json::array();
  document["advice"] = nullptr;
  const bool fits = result.fits;
  document["fits"] = fits;
  document["searched"] = {{"strategies", 1},
                          {"evaluated", fits ? 1 : 0},
                          {"bounded", 0},
                          {"simulated", 1},
                          {"mixed", 0},
                          {"refused", fits ? Json::object() : Json{{"out of memory", 1}}},
                          {"illegal", Json::object()},
                          {"seconds", nullptr}};
  const Job& job = result.request.job;
  document["job"] = {{"model", result.from_program ? Json(nullptr) : Json(result.request.model.name)},
                     {"sequence_length", job.sequence_length},
                     {"global_batch", job.global_batch},
                     {"global_batch_reason", result.batch_reason.empty() ? Json(nullptr) : Json(result.batch_reason)},
                     {"precision", result.from_program ? Json(nullptr) : Json(job.precision)}};
  return document.dump(2) + "\n";
}

}  // namespace foresail
