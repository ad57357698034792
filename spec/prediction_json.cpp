// The `predicted` object of plans and of the command line's JSON.
#include <limits>

#include "core/json.h"
#include "spec/forms_json.h"
#include "spec/plan.h"

namespace foresail {
namespace {

constexpr double kMostNumber = 1e30;  // seconds, tokens or FLOP per second: beyond any machine there is

/// A key of the document and the field behind it; each list is in the document's order.
template <typename Struct, typename Field>
struct Key {
  const char* name;
  Field Struct::*field;
};

constexpr Key<MemoryPrediction, int64_t> kMemoryKeys[] = {
    {"parameters", &MemoryPrediction::parameters}, {"gradients", &MemoryPrediction::gradients},
    {"optimizer", &MemoryPrediction::optimizer},   {"activations", &MemoryPrediction::activations},
    {"scratch", &MemoryPrediction::scratch},       {"framework", &MemoryPrediction::framework}};

constexpr Key<TimePrediction, double> kTimeKeys[] = {{"compute", &TimePrediction::compute},
                                                     {"recompute", &TimePrediction::recompute},
                                                     {"tensor_comm", &TimePrediction::tensor_comm},
                                                     {"data_comm", &TimePrediction::data_comm},
                                                     {"pipeline_comm", &TimePrediction::pipeline_comm},
                                                     {"expert_comm", &TimePrediction::expert_comm},
                                                     {"context_comm", &TimePrediction::context_comm},
                                                     {"bubble", &TimePrediction::bubble},
                                                     {"optimizer", &TimePrediction::optimizer},
                                                     {"data_wait", &TimePrediction::data_wait}};

constexpr Key<Prediction, double> kRateKeys[] = {
    {"tokens_per_second", &Prediction::tokens_per_second},
    {"tokens_per_second_per_device", &Prediction::tokens_per_second_per_device},
    {"model_flops_per_second_per_device", &Prediction::model_flops_per_second_per_device},
    {"mfu", &Prediction::mfu},
    {"hfu", &Prediction::hfu}};

constexpr Key<Prediction, double> kStepKeys[] = {{"step_seconds", &Prediction::step_seconds},
                                                 {"step_seconds_low", &Prediction::step_seconds_low},
                                                 {"step_seconds_high", &Prediction::step_seconds_high}};

constexpr Key<Prediction, int64_t> kByteKeys[] = {{"peak_bytes", &Prediction::peak_bytes},
                                                  {"arena_bytes", &Prediction::arena_bytes},
                                                  {"framework_bytes", &Prediction::framework_bytes}};

template <typename Struct, typename Field, size_t count>
void write_keys(Json& to, const Struct& from, const Key<Struct, Field> (&keys)[count]) {
  for (const auto& key : keys) to[key.name] = from.*key.field;
}

template <typename Struct, size_t count>
void read_keys(const JsonObject& from, Struct& to, const Key<Struct, double> (&keys)[count]) {
  for (const auto& key : keys) to.*key.field = from.require_number(key.name, 0, kMostNumber);
}

template <typename Struct, size_t count>
void read_keys(const JsonObject& from, Struct& to, const Key<Struct, int64_t> (&keys)[count]) {
  for (const auto& key : keys) to.*key.field = from.require_int(key.name, 0, kMostBytes);
}

double exposed_comm(const TimePrediction& time) {
  return time.tensor_comm + time.context_comm + time.expert_comm + time.data_comm + time.pipeline_comm;
}

}  // namespace

Json prediction_form(const Prediction& predicted) {
  Json form = Json::object();
  write_keys(form, predicted, kStepKeys);
  form["calibrated"] = predicted.calibrated;
  write_keys(form, predicted, kRateKeys);
  form["effective_utilization"] = nullptr;
  write_keys(form, predicted, kByteKeys);
  form["host_bytes"] = nullptr;
  form["peak_bytes_by_stage"] = predicted.peak_bytes_by_stage;
  Json memory = Json::object();
  write_keys(memory, predicted.memory, kMemoryKeys);
  form["memory"] = std::move(memory);
  Json time = Json::object();
  write_keys(time, predicted.time, kTimeKeys);
  time["exposed_comm"] = exposed_comm(predicted.time);
  form["time"] = std::move(time);
  form["scaling"] = nullptr;
  form["data"] = nullptr;
  return form;
}

Prediction prediction_from(const JsonObject& object) {
  object.refuse_unknown_keys({"step_seconds", "step_seconds_low", "step_seconds_high", "calibrated",
                              "tokens_per_second", "tokens_per_second_per_device", "model_flops_per_second_per_device",
                              "mfu", "hfu", "effective_utilization", "peak_bytes", "arena_bytes", "framework_bytes",
                              "host_bytes", "peak_bytes_by_stage", "memory", "time", "scaling", "data"});
  Prediction predicted;
  read_keys(object, predicted, kStepKeys);
  predicted.calibrated = object.get_bool("calibrated", false);
  read_keys(object, predicted, kRateKeys);
  read_keys(object, predicted, kByteKeys);
  predicted.peak_bytes_by_stage = object.get_ints("peak_bytes_by_stage");
  for (const int64_t bytes : predicted.peak_bytes_by_stage) {
    if (bytes < 0 || bytes > kMostBytes) object.fail("peak_bytes_by_stage", "holds an absurd size", "plan again");
  }
  const JsonObject memory = object.require_object("memory");
  memory.refuse_unknown_keys({"parameters", "gradients", "optimizer", "activations", "scratch", "framework"});
  read_keys(memory, predicted.memory, kMemoryKeys);
  const JsonObject time = object.require_object("time");
  time.refuse_unknown_keys({"compute", "recompute", "tensor_comm", "data_comm", "pipeline_comm", "expert_comm",
                            "context_comm", "bubble", "optimizer", "exposed_comm", "data_wait"});
  read_keys(time, predicted.time, kTimeKeys);
  return predicted;
}

std::string prediction_to_json(const Prediction& predicted) { return json_text(prediction_form(predicted)); }

}  // namespace foresail
