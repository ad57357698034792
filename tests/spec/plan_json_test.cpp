#include "spec/plan.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"

namespace foresail {
namespace {

Plan sample_plan() {
  Plan plan;
  plan.foresail_version = "0.1.0";
  plan.job.model = "gpt2";
  plan.job.optimizer.learning_rate = 0.1 + 0.2;
  plan.model_config = "{\n  \"n_embd\": 768, \"eps\": 1e-05\n}\n";
  plan.model_name = "gpt2";
  plan.machine_name = "host";
  plan.machine_digest = std::string(32, 'a');
  plan.strategy.dp = 2;
  plan.strategy.pp = 2;
  plan.strategy.recompute = Recompute::full;
  plan.target.threads = 3;
  plan.target.workspace_bytes = {{"gemm", 128}, {"attention", 64}};
  plan.target.framework_bytes = 99;
  plan.program_digests = {std::string(32, '0'), "0123456789abcdef0123456789abcdef"};
  Prediction& p = plan.predicted;
  p.step_seconds = 1.0 / 3;
  p.step_seconds_low = 0.3;
  p.step_seconds_high = 0.4;
  p.calibrated = true;
  p.tokens_per_second = 1e5 / 3;
  p.tokens_per_second_per_device = 1e5 / 12;
  p.model_flops_per_second_per_device = 1e10 / 3;
  p.mfu = 0.41;
  p.hfu = 0.52;
  p.peak_bytes = 21;
  p.arena_bytes = 15;
  p.framework_bytes = 6;
  p.peak_bytes_by_stage = {21, 20};
  p.memory = {1, 2, 3, 4, 5, 6};
  p.time = {0.1, 0.02, 0.03, 0, 0, 0.04, 0.05, 0.06, 0.07, 0.08};
  plan.steps = 300;
  return plan;
}

std::string refusal(const std::string& text) {
  try {
    plan_from_json(text, "plan.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    return error.what();
  }
  return "";
}

TEST(Plan, ReadsBackBitForBit) {
  const std::string text = plan_to_json(sample_plan());
  const Plan again = plan_from_json(text, "plan.json");
  EXPECT_EQ(plan_to_json(again), text);
  EXPECT_EQ(again.model_config, sample_plan().model_config);
  EXPECT_EQ(again.strategy, sample_plan().strategy);
  EXPECT_EQ(again.predicted.step_seconds, 1.0 / 3);
  EXPECT_EQ(again.predicted.time.data_comm, 0.04);
  EXPECT_EQ(again.predicted.time.pipeline_comm, 0.05);
  EXPECT_EQ(again.predicted.memory.scratch, 5);
  EXPECT_EQ(again.job.optimizer.learning_rate, 0.1 + 0.2);
  EXPECT_EQ(again.target.workspace_bytes, sample_plan().target.workspace_bytes);
  EXPECT_EQ(again.program_digests, sample_plan().program_digests);
}

TEST(Plan, ThePredictionHasEveryKeyOfTheContractAndNullForPartsNotBuilt) {
  const Json predicted = parse_json(prediction_to_json(sample_plan().predicted), "t");
  for (const char* key : {"step_seconds", "step_seconds_low", "step_seconds_high", "calibrated", "tokens_per_second",
                          "tokens_per_second_per_device", "model_flops_per_second_per_device", "mfu", "hfu",
                          "effective_utilization", "peak_bytes", "arena_bytes", "framework_bytes", "host_bytes",
                          "peak_bytes_by_stage", "memory", "time", "scaling", "data"}) {
    EXPECT_TRUE(predicted.contains(key)) << key;
  }
  for (const char* key : {"effective_utilization", "host_bytes", "scaling", "data"}) {
    EXPECT_TRUE(predicted[key].is_null()) << key;
  }
  double total = 0;
  for (const auto& [key, seconds] : predicted["time"].items()) {
    if (key != "exposed_comm") total += seconds.get<double>();
  }
  EXPECT_DOUBLE_EQ(total, 0.45);
  EXPECT_DOUBLE_EQ(predicted["time"]["exposed_comm"].get<double>(), 0.03 + 0.04 + 0.05);
  EXPECT_EQ(predicted["memory"].size(), 6u);
}

TEST(Plan, TheStrategyObjectHasEveryKeyAndTheDevices) {
  const Json strategy = parse_json(strategy_to_json(sample_plan().strategy), "t");
  EXPECT_EQ(strategy.size(), 23u);
  EXPECT_EQ(strategy["devices"], 4);
  EXPECT_EQ(strategy["schedule"], "1f1b");
  EXPECT_EQ(strategy["recompute"], "full");
}

TEST(Plan, RefusesDamageNamingFileAndField) {
  const std::pair<std::string, std::string> changes[] = {
      {"\"dp\": 2", "\"dp\": 0"},
      {"\"dp\": 2", "\"dp\": 3"},  // contradicts devices
      {"\"dp\": 2", "\"pd\": 2"},
      {"\"schedule\": \"1f1b\"", "\"schedule\": \"1f1b,tp=2\""},
      {"\"schedule\": \"1f1b\"", "\"schedule\": \"zigzag\""},
      {"\"recompute\": \"full\"", "\"recompute\": \"everything\""},
      {"\"arena_bytes\": 15", "\"arena_bytes\": -15"},
      {"\"arena_bytes\": 15", "\"arena_bytes\": 1e30"},
      {"\"threads\": 3", "\"threads\": 0"},
      {"\"alignment\": 64", "\"alignment\": 48"},
      {"\"back_end\": \"cpu\"", "\"back_end\": \"tpu\""},
      {"\"steps\": 300", "\"steps\": -1"},
      {"0123456789abcdef0123456789abcdef", "0123"},
      {"\"0123456789abcdef0123456789abcdef\"", "7"},
      {"\"model_config\"", "\"config\""},
      {"\"mfu\": 0.41", "\"mfu\": null"},
      {"\"framework\": 6", "\"framework\": 6, \"framework\": 6"},
  };
  for (const auto& [from, to] : changes) {
    std::string text = plan_to_json(sample_plan());
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    EXPECT_NE(refusal(text.replace(at, from.size(), to)).find("plan.json"), std::string::npos) << to;
  }
}

TEST(Plan, RefusesOtherSchemasByNameAndEveryTruncation) {
  std::string text = plan_to_json(sample_plan());
  std::string later = text;
  later.replace(later.find("foresail.plan/1"), 15, "foresail.plan/2");
  EXPECT_NE(refusal(later).find("'foresail.plan/2', not 'foresail.plan/1'"), std::string::npos);
  const size_t end = text.find_last_of('}');
  for (size_t length = 0; length <= end; length += 7) EXPECT_NE(refusal(text.substr(0, length)), "") << length;
}

TEST(Target, ReadsBack) {
  Target target = sample_plan().target;
  target.back_end = "reference";
  target.blocking_communication = false;
  target.unfused_attention = true;
  target.fused_kernels = false;
  target.alignment = 128;
  target.framework_bytes_spread = 5;
  const std::string text = target_to_json(target);
  EXPECT_EQ(target_to_json(target_from_json(text, "t")), text);
  EXPECT_EQ(target_from_json(text, "t").alignment, 128);
  EXPECT_FALSE(target_from_json(text, "t").fused_kernels);
}

}  // namespace
}  // namespace foresail
