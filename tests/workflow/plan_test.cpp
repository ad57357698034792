#include "workflow/plan.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "workflow/simulate.h"

namespace foresail {
namespace {

class PlanFiles : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_ = std::filesystem::temp_directory_path() / ("plan_test_" + std::to_string(::getpid()));

  static PlanOptions gpt2() {
    PlanOptions options;
    options.model = "gpt2", options.machine = "dgx-a100-80gb", options.global_batch = 64;
    options.tokens = 1'000'000'000, options.devices = "8";
    return options;
  }
};

std::string refusal(const PlanOptions& options) {
  try {
    make_plan(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    return error.what();
  }
  return "";
}

TEST_F(PlanFiles, ThePlanFileHoldsWhatTrainNeeds) {
  PlanOptions options = gpt2();
  options.out = folder_ / "plan.json";
  const PlanResult result = make_plan(options);
  ASSERT_TRUE(result.feasible());
  const Plan plan = load_plan(options.out);
  EXPECT_EQ(plan.strategy, result.search.plans[0].strategy);
  EXPECT_EQ(plan.job.global_batch, 64);
  EXPECT_EQ(plan.job.sequence_length, 1024);
  EXPECT_EQ(plan.steps, (1'000'000'000 + 65535) / 65536);
  EXPECT_EQ(plan.program_digests.size(), static_cast<size_t>(plan.strategy.pp));
  EXPECT_EQ(plan.machine_name, "dgx-a100-80gb");
  EXPECT_EQ(parse_model_config(plan.model_config, "plan").layers, 12);
  EXPECT_EQ(plan.predicted.step_seconds, result.search.plans[0].predicted.step_seconds);
  // The embedded target compiles to the digests that the plan promises.
  const Evaluation again =
      evaluate(result.request.model, plan.job, result.request.machine, result.request.stack, plan.strategy, false);
  for (size_t stage = 0; stage < again.programs.size(); ++stage) {
    EXPECT_EQ(program_digest(again.programs[stage]), plan.program_digests[stage]);
  }
}

TEST_F(PlanFiles, JsonHasTheKeysOfTheDesign) {
  const Json json = parse_json(plan_result_to_json(make_plan(gpt2())), "plan");
  for (const char* key : {"plans", "frontier", "advice", "searched"}) EXPECT_TRUE(json.contains(key)) << key;
  for (const char* key : {"strategies", "evaluated", "bounded", "simulated", "mixed", "refused", "seconds"}) {
    EXPECT_TRUE(json["searched"].contains(key)) << key;
  }
  const Json& plan = json["plans"][0];
  for (const char* key : {"dp", "tp", "pp", "cp", "ep", "etp", "virtual_stages", "micro_batch", "schedule",
                          "sequence_parallel", "zero_stage", "recompute", "devices"}) {
    EXPECT_TRUE(plan["strategy"].contains(key)) << key;
  }
  for (const char* key : {"step_seconds", "step_seconds_low", "step_seconds_high", "calibrated", "tokens_per_second",
                          "tokens_per_second_per_device", "model_flops_per_second_per_device", "mfu", "hfu",
                          "effective_utilization", "peak_bytes", "arena_bytes", "framework_bytes", "host_bytes",
                          "peak_bytes_by_stage", "memory", "time", "scaling", "data"}) {
    EXPECT_TRUE(plan["predicted"].contains(key)) << key;
  }
  for (const char* key : {"train_seconds", "device_hours", "usd", "usd_low", "usd_high", "usd_by_cause", "energy_kwh",
                          "goodput", "expected_failures", "checkpoint_interval_seconds",
                          "expected_lost_seconds_per_failure", "checkpoint_bytes", "storage_usd", "capacity"}) {
    EXPECT_TRUE(plan["budget"].contains(key)) << key;
  }
  EXPECT_TRUE(plan["predicted"]["data"].is_null());
  EXPECT_DOUBLE_EQ(plan["predicted"]["scaling"]["efficiency"].get<double>(), 1);
  double time = 0;
  for (const auto& [key, value] : plan["predicted"]["time"].items()) {
    if (key != "exposed_comm") time += value.get<double>();
  }
  EXPECT_NEAR(time, plan["predicted"]["step_seconds"].get<double>(), 1e-12 * time);
}

TEST_F(PlanFiles, TheDumpedProgramSimulatesToThePlannedTime) {
  PlanOptions options = gpt2();
  options.fix = "pp=2,tp=2";
  options.dump_program = folder_ / "program.json";
  options.trace = folder_ / "trace.json";
  const PlanResult result = make_plan(options);
  SimulateOptions from_dump;
  from_dump.machine = options.machine;
  from_dump.programs = {folder_ / "program.json", folder_ / "program.stage-1.json"};
  const SimulateResult simulated = simulate_strategy(from_dump);
  EXPECT_EQ(simulated.candidate.predicted.step_seconds, result.search.plans[0].predicted.step_seconds);
  EXPECT_EQ(simulated.candidate.predicted.peak_bytes, result.search.plans[0].predicted.peak_bytes);
  EXPECT_EQ(simulated.candidate.strategy, result.search.plans[0].strategy);
  EXPECT_GT(parse_json(read_file(options.trace), "trace")["traceEvents"].size(), 100u);
  const std::function<void(SimulateOptions&)> says_again[] = {
      [](auto& o) { o.strategy = "tp=2"; }, [](auto& o) { o.devices = 4; },      [](auto& o) { o.sequence_length = 8; },
      [](auto& o) { o.global_batch = 8; },  [](auto& o) { o.job = "job.json"; }, [](auto& o) { o.model = "gpt2"; }};
  for (const auto& say : says_again) {
    SimulateOptions both = from_dump;
    say(both);
    EXPECT_THROW(simulate_strategy(both), Error);
  }
  from_dump.programs.pop_back();
  EXPECT_THROW(simulate_strategy(from_dump), Error);
  from_dump.programs = {folder_ / "program.stage-1.json", folder_ / "program.json"};
  EXPECT_THROW(simulate_strategy(from_dump), Error);
}

TEST_F(PlanFiles, AMixOfRecomputeChoicesIsStoredPrintedAndSimulated) {
  PlanOptions options = gpt2();
  options.fix = "dp=8,tp=1,pp=1,micro_batch=8,zero_stage=0";
  const PlanResult whole = make_plan(options);
  ASSERT_TRUE(whole.feasible());
  options.memory_bytes = whole.search.plans[0].predicted.peak_bytes * 3 / 4;
  options.out = folder_ / "plan.json";
  const PlanResult result = make_plan(options);
  ASSERT_TRUE(result.feasible());
  const Candidate& best = result.search.plans[0];
  ASSERT_FALSE(best.strategy.recompute_layers.empty());
  EXPECT_LE(best.predicted.peak_bytes, options.memory_bytes);
  EXPECT_EQ(load_plan(options.out).strategy, best.strategy);
  EXPECT_NE(plan_table(result).find(" recompute_layers="), std::string::npos);
  EXPECT_EQ(parse_json(plan_result_to_json(result), "plan")["searched"]["mixed"], result.search.mixed);
  SimulateOptions again;
  again.model = options.model, again.machine = options.machine, again.global_batch = options.global_batch;
  again.strategy = to_text(best.strategy);
  const SimulateResult simulated = simulate_strategy(again);
  EXPECT_EQ(simulated.candidate.strategy, best.strategy);
  EXPECT_EQ(simulated.candidate.predicted.step_seconds, best.predicted.step_seconds);
  EXPECT_EQ(simulated.candidate.predicted.peak_bytes, best.predicted.peak_bytes);
}

TEST_F(PlanFiles, NothingFeasibleWritesNothingAndExplains) {
  PlanOptions options = gpt2();
  options.memory_bytes = 1'000'000;
  options.out = folder_ / "plan.json";
  const PlanResult result = make_plan(options);
  EXPECT_FALSE(result.feasible());
  EXPECT_FALSE(std::filesystem::exists(options.out));
  const std::string table = plan_table(result);
  EXPECT_NE(table.find("memory binds"), std::string::npos) << table;
  EXPECT_NE(table.find("nearest"), std::string::npos) << table;
  const Json json = parse_json(plan_result_to_json(result), "plan");
  EXPECT_TRUE(json["plans"].empty());
  EXPECT_EQ(json["infeasible"]["limit"], "memory");
}

TEST_F(PlanFiles, AMissingGlobalBatchIsProposedWithItsReason) {
  PlanOptions options = gpt2();
  options.global_batch = 0;
  const PlanResult result = make_plan(options);
  EXPECT_GT(result.request.job.global_batch, 0);
  EXPECT_NE(plan_table(result).find(result.batch_reason), std::string::npos);
  EXPECT_FALSE(result.batch_reason.empty());
}

TEST_F(PlanFiles, AnImpossibleFixNamesItsKeyAndTheValuesItCanHave) {
  PlanOptions options = gpt2();
  options.fix = "tp=9";
  const std::string said = refusal(options);
  EXPECT_NE(said.find("--fix tp=9"), std::string::npos) << said;
  EXPECT_NE(said.find("tp can be 1, 2, 4"), std::string::npos) << said;  // 8 does not divide the 12 heads
}

TEST_F(PlanFiles, TheTableShowsTheCeilingThatWasAppliedAndTheCountsThatWereTried) {
  PlanOptions options = gpt2();
  options.memory_bytes = 60'000'000'000, options.devices = "2..4";
  const std::string table = plan_table(make_plan(options));
  EXPECT_NE(table.find("of 55.88 GiB"), std::string::npos) << table;
  EXPECT_NE(table.find("tried    2, 3, 4 devices"), std::string::npos) << table;
}

TEST_F(PlanFiles, BadFlagsAreNamed) {
  PlanOptions options = gpt2();
  options.machine = "";
  EXPECT_NE(refusal(options).find("--machine"), std::string::npos);
  options = gpt2();
  options.model = "";
  EXPECT_NE(refusal(options).find("--model"), std::string::npos);
  options = gpt2();
  options.objective = "beauty";
  EXPECT_NE(refusal(options).find("--objective"), std::string::npos);
  options = gpt2();
  options.devices = "many";
  EXPECT_NE(refusal(options).find("--devices"), std::string::npos);
  options = gpt2();
  options.tokens = 0, options.deadline_days = 3;
  EXPECT_NE(refusal(options).find("--tokens"), std::string::npos);
  options = gpt2();
  options.top = 0;
  EXPECT_NE(refusal(options).find("--top"), std::string::npos);
  options = gpt2();
  options.fix = "tp=two";
  EXPECT_NE(refusal(options).find("tp"), std::string::npos);
  options = gpt2();
  options.global_batch = -3;
  EXPECT_NE(refusal(options).find("--global-batch"), std::string::npos);
}

TEST(Simulate, LeftOutDpFillsTheDevices) {
  SimulateOptions options;
  options.model = "gpt2", options.machine = "dgx-a100-80gb", options.global_batch = 64;
  options.strategy = "tp=2,micro_batch=4";
  EXPECT_EQ(simulate_strategy(options).candidate.strategy.devices(), 2);  // what it names, not the machine's 8
  options.devices = 8;
  const SimulateResult result = simulate_strategy(options);
  EXPECT_EQ(result.candidate.strategy.dp, 4);
  EXPECT_TRUE(result.fits);
  EXPECT_NE(simulate_table(result).find("dp=4 tp=2"), std::string::npos);
  const Json json = parse_json(simulate_result_to_json(result), "simulate");
  EXPECT_EQ(json["plans"].size(), 1u);
  options.devices = 16;
  EXPECT_EQ(simulate_strategy(options).candidate.strategy.dp, 8);
  options.strategy = "tp=2,dp=4,micro_batch=4";
  EXPECT_THROW(simulate_strategy(options), Error);
}

TEST(Simulate, IllegalStrategiesAreRefusedWithTheReason) {
  SimulateOptions options;
  options.model = "gpt2", options.machine = "dgx-a100-80gb", options.global_batch = 64;
  options.strategy = "tp=8,micro_batch=4";  // 12 heads
  try {
    simulate_strategy(options);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("heads"), std::string::npos) << error.what();
  }
}

TEST(Simulate, APlanThatDoesNotFitIsStillPricedAndSaysSo) {
  SimulateOptions options;
  options.model = "gpt-3-175b", options.machine = "dgx-a100-80gb", options.global_batch = 8;
  options.strategy = "tp=8,micro_batch=1";
  const SimulateResult result = simulate_strategy(options);
  EXPECT_FALSE(result.fits);
  EXPECT_FALSE(parse_json(simulate_result_to_json(result), "simulate")["fits"].get<bool>());
  EXPECT_NE(simulate_table(result).find("more than the 80.00 GiB of a device"), std::string::npos)
      << simulate_table(result);
  EXPECT_NE(simulate_table(result).find("does not fit"), std::string::npos);
}

}  // namespace
}  // namespace foresail
