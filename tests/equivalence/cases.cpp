#include <fmt/format.h>

#include "core/error.h"
#include "program/compile.h"
#include "tests/equivalence/suite.h"
#include "tests/program/small_models.h"

namespace foresail::testing {

Job suite_job(const std::string& device, int64_t global_batch) {
  Job job = small_job(global_batch);
  job.precision = device == "reference" ? "fp64" : "fp32";
  job.optimizer.learning_rate = 1e-2;
  job.optimizer.schedule = LearningRateSchedule::constant;
  job.optimizer.warmup_steps = 2;
  return job;
}

Experiment baseline_of(const Experiment& experiment) {
  Experiment baseline = experiment;
  baseline.strategy = Strategy{};
  baseline.strategy.micro_batch = experiment.job.global_batch;
  baseline.fused_kernels = true;
  baseline.unfused_attention = false;
  baseline.serialise_queues = false;
  return baseline;
}

Task single_task(const std::string& device, const std::string& model, const std::string& strategy,
                 const std::string& options) {
  const auto has = [&](const char* option) { return options.find(option) != std::string::npos; };
  Task task;
  task.name = fmt::format("{} {} {} {}", device, model, strategy, options);
  task.experiment.model = small_model(model);
  int64_t batch = 12;
  if (const auto at = options.find("batch="); at != std::string::npos) batch = std::stoll(options.substr(at + 6));
  task.experiment.job = suite_job(device, batch);
  task.experiment.strategy = parse_strategy(strategy).strategy;
  task.experiment.device = device;
  task.experiment.fused_kernels = !has("unfused");
  task.experiment.unfused_attention = has("scores");
  task.experiment.serialise_queues = has("serial");
  task.repeat = has("repeat");
  task.both_modes = has("modes");
  return task;
}

}  // namespace foresail::testing
