#include <cmath>

#include "core/json.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/inspect.h"
#include "runtime/checkpoint/transfer.h"

namespace foresail {
namespace {

// JSON has no infinity: a difference that is none (NaN against a number) is null.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

}  // namespace

std::string checkpoint_list_to_json(const std::vector<CheckpointEntry>& entries) {
  Json list = Json::array();
  for (const CheckpointEntry& entry : entries) {
    list.push_back({{"step", entry.step},
                    {"path", entry.path.string()},
                    {"complete", entry.complete},
                    {"bytes", entry.bytes},
                    {"problem", entry.complete ? Json(nullptr) : Json(entry.problem)}});
  }
  return json_text(Json{{"checkpoints", list}});
}

std::string checkpoint_verdicts_to_json(const std::vector<CheckpointVerdict>& verdicts) {
  Json list = Json::array();
  bool passed = true;
  for (const CheckpointVerdict& verdict : verdicts) {
    passed = passed && verdict.passed();
    list.push_back({{"path", verdict.path},
                    {"step", verdict.step < 0 ? Json(nullptr) : Json(verdict.step)},
                    {"passed", verdict.passed()},
                    {"tensors", verdict.tensors},
                    {"bytes", verdict.bytes},
                    {"problems", verdict.problems}});
  }
  return json_text(Json{{"passed", passed}, {"checkpoints", list}});
}

std::string checkpoint_difference_to_json(const CheckpointDifference& difference) {
  Json tensors = Json::array();
  for (const TensorDifference& tensor : difference.tensors) {
    tensors.push_back({{"tensor", tensor.tensor},
                       {"identical", tensor.identical},
                       {"only_in_first", tensor.only_in_first},
                       {"only_in_second", tensor.only_in_second},
                       {"shapes_differ", tensor.shapes_differ},
                       {"maximum_absolute", number(tensor.maximum_absolute)},
                       {"maximum_relative", number(tensor.maximum_relative)}});
  }
  return json_text(Json{{"identical", difference.identical},
                        {"maximum_absolute", number(difference.maximum_absolute)},
                        {"maximum_relative", number(difference.maximum_relative)},
                        {"tensors", tensors}});
}

std::string transfer_result_to_json(const TransferResult& result) {
  return json_text(Json{{"path", result.path},
                        {"tensors", result.tensors},
                        {"parameters", result.parameters},
                        {"bytes", result.bytes},
                        {"files", result.files},
                        {"rounded", result.conversion.rounded},
                        {"notes", result.notes}});
}

}  // namespace foresail
