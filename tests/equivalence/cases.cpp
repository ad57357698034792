#include <fmt/format.h>

#include <algorithm>

#include "tests/equivalence/generator/covering.h"
#include "tests/equivalence/suite.h"
#include "tests/program/small_models.h"

namespace foresail::testing {
namespace {

constexpr size_t kCasesPerDevice = 156;

}  // namespace

Experiment baseline_of(const Experiment& experiment) {
  Experiment baseline = experiment;
  baseline.strategy = Strategy{};
  baseline.strategy.micro_batch = experiment.job.global_batch;
  baseline.fused_kernels = true;
  baseline.unfused_attention = false;
  baseline.serialise_queues = false;
  return baseline;
}

std::vector<Task> generated_tasks(const std::string& device) {
  std::vector<Task> tasks;
  for (const Row& row : covering_rows(device == "cpu" ? 2 : 1, kCasesPerDevice)) {
    Task task;
    task.experiment = experiment_of(row, device);
    task.name = name_of(task.experiment);
    task.repeat = tasks.size() % 8 == 0;
    task.both_modes = task.experiment.strategy.overlap;
    tasks.push_back(task);
  }
  return tasks;
}

std::vector<Task> sample_of(const std::vector<Task>& tasks, size_t count) {
  std::vector<Task> sample;
  for (size_t i = 0; i < tasks.size() && sample.size() < count; i += std::max<size_t>(1, tasks.size() / count)) {
    sample.push_back(tasks[i]);
  }
  return sample;
}

std::string name_of(const Experiment& experiment) {
  return fmt::format("{} {} {} batch={}{}{}{}", experiment.device, experiment.model.name, to_text(experiment.strategy),
                     experiment.job.global_batch, experiment.fused_kernels ? "" : ",unfused",
                     experiment.unfused_attention ? ",scores" : "", experiment.serialise_queues ? ",serial" : "");
}

Task single_task(const std::string& device, const std::string& model, const std::string& strategy,
                 const std::string& options) {
  const auto has = [&](const char* option) { return options.find(option) != std::string::npos; };
  Task task;
  task.experiment.model = small_model(model);
  int64_t batch = 12;
  if (const auto at = options.find("batch="); at != std::string::npos) batch = std::stoll(options.substr(at + 6));
  task.experiment.job = suite_job(device, batch);
  task.experiment.strategy = parse_strategy(strategy).strategy;
  task.experiment.device = device;
  task.experiment.fused_kernels = !has("unfused");
  task.experiment.unfused_attention = has("scores");
  task.experiment.serialise_queues = has("serial");
  task.name = name_of(task.experiment);
  task.repeat = has("repeat");
  task.both_modes = has("modes");
  return task;
}

}  // namespace foresail::testing
