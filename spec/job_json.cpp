// foresail.job/1
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/json.h"
#include "spec/batch_ramp.h"
#include "spec/forms_json.h"
#include "spec/job.h"

namespace foresail {
namespace {

constexpr const char* kSchema = "foresail.job/1";
constexpr int64_t kMostSequences = int64_t{1} << 24;  // per batch; also tokens per sequence
constexpr double kMostRate = 100;
constexpr size_t kMostRampStages = 64;

template <typename Value, size_t kCount>
using Names = std::array<std::pair<std::string_view, Value>, kCount>;
constexpr Names<LearningRateSchedule, 3> kSchedules{{{"cosine", LearningRateSchedule::cosine},
                                                     {"constant", LearningRateSchedule::constant},
                                                     {"wsd", LearningRateSchedule::warmup_stable_decay}}};
constexpr Names<DecayShape, 2> kDecayShapes{{{"linear", DecayShape::linear}, {"1-sqrt", DecayShape::one_minus_sqrt}}};

template <typename Value, size_t kCount>
std::string name_in(const Names<Value, kCount>& names, Value value) {
  for (const auto& [name, named] : names) {
    if (named == value) return std::string(name);
  }
  ensure(false, "every value has a name");
  return "";
}

template <typename Value, size_t kCount>
Value named_from(const JsonObject& object, const std::string& key, const Names<Value, kCount>& names, Value fallback) {
  if (!object.has(key)) return fallback;
  const std::string given = object.require_string(key);
  std::string known;
  for (const auto& [name, value] : names) {
    if (name == given) return value;
    known += (known.empty() ? "" : " or ") + std::string(name);
  }
  object.fail(key, "'" + given + "' is unknown", "use " + known);
}

/// How long a warm-up-stable-decay schedule decays: one of two keys, which no other schedule has.
void decay_from(const JsonObject& object, OptimizerJob& o) {
  for (const char* key : {"decay_shape", "decay_steps", "decay_fraction"}) {
    if (!object.has(key) || o.schedule == LearningRateSchedule::warmup_stable_decay) continue;
    object.fail(key, "only the schedule wsd has it", "leave it out, or set schedule to wsd");
  }
  o.decay_shape = named_from(object, "decay_shape", kDecayShapes, o.decay_shape);
  if (object.has("decay_steps") && object.has("decay_fraction")) {
    object.fail("decay_steps", "decay_fraction says it too", "give one of them");
  }
  o.decay_steps = object.get_int("decay_steps", o.decay_steps, 1, kMostSteps);
  o.decay_fraction = object.get_number("decay_fraction", o.decay_fraction, 0, 1);
}

OptimizerJob optimizer_from(const JsonObject& object) {
  object.refuse_unknown_keys({"learning_rate", "minimum_learning_rate", "schedule", "warmup_steps", "beta1", "beta2",
                              "epsilon", "weight_decay", "clip_norm", "decay_shape", "decay_steps", "decay_fraction"});
  const double below_one = std::nextafter(1.0, 0.0);
  const double above_zero = std::numeric_limits<double>::min();
  OptimizerJob o;
  if (object.has("learning_rate")) {
    o.learning_rate = object.require_number("learning_rate", 0, kMostRate);
    o.minimum_learning_rate = o.learning_rate / 10;
  }
  o.minimum_learning_rate = object.get_number("minimum_learning_rate", o.minimum_learning_rate, 0, kMostRate);
  if (o.minimum_learning_rate > o.learning_rate) {
    object.fail("minimum_learning_rate", "is larger than learning_rate", "give at most learning_rate");
  }
  o.schedule = named_from(object, "schedule", kSchedules, o.schedule);
  o.warmup_steps = object.get_int("warmup_steps", o.warmup_steps, 0, kMostSteps);
  o.beta1 = object.get_number("beta1", o.beta1, 0, below_one);
  o.beta2 = object.get_number("beta2", o.beta2, 0, below_one);
  o.epsilon = object.get_number("epsilon", o.epsilon, above_zero, 1);
  o.weight_decay = object.get_number("weight_decay", o.weight_decay, 0, 10);
  o.clip_norm = object.get_number("clip_norm", o.clip_norm, 0, 1e9);
  decay_from(object, o);
  return o;
}

Json optimizer_form(const OptimizerJob& o) {
  Json form{{"learning_rate", o.learning_rate},
            {"minimum_learning_rate", o.minimum_learning_rate},
            {"schedule", name_in(kSchedules, o.schedule)},
            {"warmup_steps", o.warmup_steps},
            {"beta1", o.beta1},
            {"beta2", o.beta2},
            {"epsilon", o.epsilon},
            {"weight_decay", o.weight_decay},
            {"clip_norm", o.clip_norm}};
  if (o.schedule != LearningRateSchedule::warmup_stable_decay) return form;
  form["decay_shape"] = name_in(kDecayShapes, o.decay_shape);
  if (o.decay_steps > 0) {
    form["decay_steps"] = o.decay_steps;
  } else {
    form["decay_fraction"] = o.decay_fraction;
  }
  return form;
}

/// A power of two, so that scaling rounds nothing.
double scale_from(const JsonObject& object, const char* key, double fallback) {
  const double scale = object.get_number(key, fallback, 0x1p-24, 0x1p24);
  int exponent = 0;
  if (std::frexp(scale, &exponent) != 0.5) object.fail(key, "is not a power of two", "use 1, 2, 4, ...");
  return scale;
}

LossScaleJob loss_scale_from(const JsonObject& object) {
  object.refuse_unknown_keys({"initial", "minimum", "growth_interval_steps"});
  LossScaleJob scale;
  scale.initial = scale_from(object, "initial", scale.initial);
  scale.minimum = scale_from(object, "minimum", std::min(scale.minimum, scale.initial));
  if (scale.minimum > scale.initial) object.fail("minimum", "is larger than initial", "give at most initial");
  scale.growth_interval_steps = object.get_int("growth_interval_steps", scale.growth_interval_steps, 1, kMostSteps);
  return scale;
}

Json loss_scale_form(const LossScaleJob& scale) {
  return {
      {"initial", scale.initial}, {"minimum", scale.minimum}, {"growth_interval_steps", scale.growth_interval_steps}};
}

Json ramp_form(const std::vector<BatchRampStage>& ramp) {
  Json form = Json::array();
  for (const BatchRampStage& stage : ramp) {
    form.push_back({{"global_batch", stage.global_batch}, {"tokens", stage.tokens}});
  }
  return form;
}

std::vector<BatchRampStage> ramp_from(const JsonObject& object) {
  std::vector<BatchRampStage> ramp;
  const std::vector<JsonObject> stages = object.get_objects("batch_ramp");
  if (stages.size() > kMostRampStages) {
    object.fail("batch_ramp", "it has " + std::to_string(stages.size()) + " stages, each with a Program of its own",
                "give at most " + std::to_string(kMostRampStages));
  }
  for (const JsonObject& stage : stages) {
    stage.refuse_unknown_keys({"global_batch", "tokens"});
    ramp.push_back({stage.require_int("global_batch", 1, kMostSequences), stage.require_int("tokens", 1, kMostBytes)});
  }
  return ramp;
}

}  // namespace

Json job_form(const Job& job) {
  Json form{{"schema", kSchema},
            {"model", job.model},
            {"sequence_length", job.sequence_length},
            {"global_batch", job.global_batch},
            {"batch_ramp", ramp_form(job.batch_ramp)},
            {"tokens", job.tokens},
            {"steps", job.steps},
            {"precision", job.precision},
            {"dropout", job.dropout},
            {"optimizer", optimizer_form(job.optimizer)},
            {"seed", job.seed},
            {"data_path", job.data_path},
            {"dataset_bytes", job.dataset_bytes},
            {"validation_fraction", job.validation_fraction},
            {"evaluation_interval_steps", job.evaluation_interval_steps},
            {"evaluation_batches", job.evaluation_batches},
            {"checkpoint_interval_steps", job.checkpoint_interval_steps},
            {"checkpoints_kept", job.checkpoints_kept},
            {"usd_per_device_hour", job.usd_per_device_hour}};
  if (job.precision == "fp16") form["loss_scale"] = loss_scale_form(job.loss_scale);
  return form;
}

Job job_from(const JsonObject& object) {
  object.require_schema(kSchema);
  object.refuse_unknown_keys({"schema",
                              "model",
                              "sequence_length",
                              "global_batch",
                              "batch_ramp",
                              "tokens",
                              "steps",
                              "precision",
                              "loss_scale",
                              "dropout",
                              "optimizer",
                              "seed",
                              "data_path",
                              "dataset_bytes",
                              "validation_fraction",
                              "evaluation_interval_steps",
                              "evaluation_batches",
                              "checkpoint_interval_steps",
                              "checkpoints_kept",
                              "usd_per_device_hour"});
  Job job;
  job.model = object.get_string("model", job.model);
  job.sequence_length = object.get_int("sequence_length", job.sequence_length, 0, kMostSequences);
  job.global_batch = object.get_int("global_batch", job.global_batch, 0, kMostSequences);
  job.batch_ramp = ramp_from(object);
  if (const std::string problem = batch_ramp_problem(job); !problem.empty()) {
    object.fail("batch_ramp", problem, "give ascending batches, all smaller than global_batch");
  }
  job.tokens = object.get_int("tokens", job.tokens, 0, kMostBytes);
  job.steps = object.get_int("steps", job.steps, 0, kMostSteps);
  job.precision = object.get_string("precision", job.precision);
  if (job.precision != "fp32" && job.precision != "bf16" && job.precision != "fp16" && job.precision != "fp64") {
    object.fail("precision", "'" + job.precision + "' is unknown", "use fp32, bf16, fp16 or fp64");
  }
  if (object.has("loss_scale")) {
    if (job.precision != "fp16") object.fail("loss_scale", "only precision fp16 has it", "leave it out");
    job.loss_scale = loss_scale_from(object.require_object("loss_scale"));
  }
  job.dropout = object.get_bool("dropout", job.dropout);
  if (object.has("optimizer")) job.optimizer = optimizer_from(object.require_object("optimizer"));
  job.seed = object.get_int("seed", job.seed, 0, std::numeric_limits<int64_t>::max());
  job.data_path = object.get_string("data_path", job.data_path);
  job.dataset_bytes = object.get_int("dataset_bytes", job.dataset_bytes, 0, kMostBytes);
  job.validation_fraction = object.get_number("validation_fraction", job.validation_fraction, 0, 0.9);
  job.evaluation_interval_steps =
      object.get_int("evaluation_interval_steps", job.evaluation_interval_steps, 0, kMostSteps);
  job.evaluation_batches = object.get_int("evaluation_batches", job.evaluation_batches, 1, kMostSequences);
  job.checkpoint_interval_steps =
      object.get_int("checkpoint_interval_steps", job.checkpoint_interval_steps, 0, kMostSteps);
  job.checkpoints_kept = object.get_int("checkpoints_kept", job.checkpoints_kept, 1, 1'000'000);
  job.usd_per_device_hour = object.get_number("usd_per_device_hour", job.usd_per_device_hour, 0, 1e6);
  return job;
}

std::string job_to_json(const Job& job) { return json_text(job_form(job)); }

Job job_from_json(const std::string& text, const std::string& source) {
  const Json value = parse_json(text, source);
  return job_from(JsonObject(value, source));
}

}  // namespace foresail
