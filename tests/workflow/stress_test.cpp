#include "workflow/stress.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "tests/workflow/small_plan.h"

namespace foresail {
namespace {

using testing::SmallPlan;

class StressTest : public ::testing::Test {
 protected:
  StressOptions options() const {
    StressOptions options;
    options.plan = small_.path();
    options.data = small_.data();
    options.minutes = 0.005;
    return options;
  }
  static StressResult run(const StressOptions& options) {
    auto communicator = make_local_communicator();
    return stress(options, *communicator);
  }
  static const StressCheck& check(const StressResult& result, const std::string& name) {
    for (const StressCheck& one : result.checks) {
      if (one.name == name) return one;
    }
    throw std::out_of_range(name);
  }

  SmallPlan small_;
};

TEST_F(StressTest, APlanThatHoldsPasses) {
  // The band of this hand-made plan covers any machine; only what a fast step would miss is widened.
  small_.plan.predicted.step_seconds_low = 0;
  small_.write();
  const StressResult result = run(options());
#ifndef __SANITIZE_ADDRESS__  // whose shadow memory counts as resident
  EXPECT_EQ(result.verdict, "pass") << stress_table(result);
#endif
  EXPECT_EQ(check(result, "arena_bytes").predicted, check(result, "arena_bytes").measured);
  EXPECT_EQ(check(result, "checkpoint_restore").measured, 0.0);
  EXPECT_EQ(check(result, "loss_after_restore").predicted, check(result, "loss_after_restore").measured);
}

TEST_F(StressTest, AStepFarFromThePredictionFails) {
  small_.plan.predicted.step_seconds = 1e-9;
  small_.plan.predicted.step_seconds_low = 0.9e-9, small_.plan.predicted.step_seconds_high = 1.1e-9;
  small_.write();
  const StressResult result = run(options());
  EXPECT_EQ(result.verdict, "fail");
  EXPECT_FALSE(check(result, "step_seconds").passed);
  EXPECT_TRUE(check(result, "arena_bytes").passed);
}

TEST(Judge, AStepTimeThatFailsAloneNamesABusyMachine) {
  const StressCheck fine{
      .name = "arena_bytes", .predicted = {}, .measured = {}, .unit = "bytes", .passed = true, .why = ""};
  StressCheck step = fine, memory = fine;
  step.name = "step_seconds", memory.name = "peak_bytes";
  step.passed = false;
  std::vector<StressCheck> alone{fine, step, memory};
  explain_lone_step_failure(alone);
  EXPECT_NE(alone[1].why.find("busy"), std::string::npos);
  memory.passed = false;
  std::vector<StressCheck> both{fine, step, memory};
  explain_lone_step_failure(both);
  EXPECT_EQ(both[1].why, "");
}

TEST(Judge, TheTableGroupsBytesAndPrefixesRates) {
  const std::string table = checks_table({{.name = "arena_bytes",
                                           .predicted = 1234567890.0,
                                           .measured = 999.0,
                                           .unit = "bytes",
                                           .passed = true,
                                           .why = ""},
                                          {.name = "rate",
                                           .predicted = 1214.0,
                                           .measured = 3.456e9,
                                           .unit = "tokens/s",
                                           .passed = true,
                                           .why = "",
                                           .label = "data: needed / supplied"}});
  for (const char* text : {"1,234,567,890", " 999 ", "1.21 k", "3.46 G", "data: needed / supplied"}) {
    EXPECT_NE(table.find(text), std::string::npos) << text << "\n" << table;
  }
}

TEST_F(StressTest, AnArenaThatIsNotThePredictedOneFails) {
  small_.plan.predicted.arena_bytes += 64;
  small_.write();
  EXPECT_FALSE(check(run(options()), "arena_bytes").passed);
}

TEST_F(StressTest, AResidentSetFarFromThePredictionFails) {
  small_.plan.predicted.peak_bytes = int64_t{4} << 30;
  small_.write();
  EXPECT_FALSE(check(run(options()), "peak_bytes").passed);
}

TEST_F(StressTest, WithoutDrillsNothingIsWritten) {
  StressOptions quick = options();
  quick.drills = false;
  quick.out = small_.folder() / "stress";
  const StressResult result = run(quick);
  EXPECT_THROW(check(result, "checkpoint_restore"), std::out_of_range);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(quick.out), {}), 1) << "only stress.json";
}

TEST_F(StressTest, TheDrillTouchesNoCheckpointOfTheFolder) {
  StressOptions into = options();
  into.out = small_.folder() / "run";
  std::filesystem::create_directories(into.out / "checkpoints/step-7");
  run(into);
  EXPECT_TRUE(std::filesystem::exists(into.out / "checkpoints/step-7"));
  EXPECT_FALSE(std::filesystem::exists(into.out / "stress-drill"));
}

TEST_F(StressTest, TheDocumentHasTheKeysOfTheContract) {
  StressOptions into = options();
  into.out = small_.folder() / "stress";
  const StressResult result = run(into);
  const Json document = parse_json(stress_result_to_json(result), "stress");
  for (const char* key : {"verdict", "checks", "plan", "seconds"}) EXPECT_TRUE(document.contains(key)) << key;
  for (const Json& check : document["checks"]) {
    for (const char* key : {"name", "predicted", "measured", "unit", "passed", "why"})
      EXPECT_TRUE(check.contains(key)) << key;
  }
  EXPECT_EQ(read_file(into.out / "stress.json"), stress_result_to_json(result));
}

TEST_F(StressTest, AbsurdLengthsAreRefused) {
  for (const double minutes : {0.0, -1.0, 1e9}) {
    StressOptions absurd = options();
    absurd.minutes = minutes;
    EXPECT_THROW(check_stress(absurd), Error);
  }
}

}  // namespace
}  // namespace foresail
