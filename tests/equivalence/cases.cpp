#include <fmt/format.h>

#include "program/compile.h"
#include "tests/equivalence/suite.h"
#include "tests/program/small_models.h"

namespace foresail::testing {

std::vector<SuiteCase> generated_cases(const std::string& device) {
  const int meshes[][3] = {{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {3, 1, 1}, {1, 1, 3},
                           {4, 1, 1}, {2, 2, 1}, {2, 1, 2}, {1, 2, 2}, {1, 4, 1}, {1, 1, 4}};
  const int64_t micro_batches[] = {1, 2, 3};
  std::vector<SuiteCase> cases;
  size_t turn = 0;
  for (const ModelSpec& model : {small_llama(), small_gpt2(), small_qwen3()}) {
    for (const auto& [dp, tp, pp] : meshes) {
      for (const Recompute recompute : {Recompute::none, Recompute::full}) {
        Experiment experiment;
        experiment.model = model;
        experiment.job = small_job(12);
        experiment.job.precision = device == "reference" ? "fp64" : "fp32";
        experiment.job.optimizer.learning_rate = 1e-2;
        experiment.job.optimizer.schedule = LearningRateSchedule::constant;
        experiment.job.optimizer.warmup_steps = 2;
        experiment.device = device;
        experiment.strategy.dp = dp;
        experiment.strategy.tp = tp;
        experiment.strategy.pp = pp;
        experiment.strategy.recompute = recompute;
        experiment.strategy.micro_batch = micro_batches[turn++ % 3];
        experiment.fused_kernels = turn % 4 != 0;
        experiment.unfused_attention = turn % 5 == 0;
        if (!legal(model, experiment.job, experiment.strategy).empty()) experiment.strategy.micro_batch = 1;
        if (!legal(model, experiment.job, experiment.strategy).empty()) continue;
        cases.push_back({fmt::format("{}, {}{}{}", model.name, to_text(experiment.strategy),
                                     experiment.fused_kernels ? "" : ", unfused kernels",
                                     experiment.unfused_attention ? ", unfused attention" : ""),
                         experiment});
      }
    }
  }
  return cases;
}

Experiment baseline_of(const Experiment& experiment) {
  Experiment baseline = experiment;
  baseline.strategy = Strategy{};
  baseline.strategy.micro_batch = experiment.job.global_batch;
  baseline.fused_kernels = true;
  baseline.unfused_attention = false;
  return baseline;
}

}  // namespace foresail::testing
