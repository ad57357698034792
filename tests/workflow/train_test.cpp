#include "workflow/train.h"
#include "workflow/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "program/compile.h"
#include "runtime/checkpoint/inspect.h"
#include "runtime/metrics/metrics_log.h"
#include "tests/workflow/small_plan.h"

namespace foresail {
namespace {

using testing::SmallPlan;

class TrainTest : public ::testing::Test {
 protected:
  TrainOptions options(const char* run = "run") const {
    TrainOptions options;
    options.plan = small_.path();
    options.data = small_.data();
    options.out = small_.run(run);
    return options;
  }
  static TrainResult run(const TrainOptions& options) {
    check_train(options);
    auto communicator = make_local_communicator();
    return train(options, *communicator);
  }
  /// The error of a call that must be refused as bad input.
  static std::string refusal(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::bad_input) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "was not refused";
    return "";
  }

  SmallPlan small_;
};

TEST_F(TrainTest, ARunLeavesPlanMetricsEventsAndCheckpoints) {
  const TrainResult result = run(options());
  EXPECT_EQ(result.steps, 12);
  EXPECT_EQ(result.tokens, 12 * 4 * 16);
  EXPECT_LT(result.loss, std::log(257.0) - 1);
  EXPECT_TRUE(std::isfinite(*result.validation_loss));
  EXPECT_EQ(result.arena_bytes, small_.plan.predicted.arena_bytes);
  EXPECT_GT(result.peak_bytes, result.arena_bytes);
  EXPECT_NEAR(result.tokens_per_second, 64 / result.step_seconds_median, 1e-6 * result.tokens_per_second);
  EXPECT_EQ(result.restarts, 0);
  EXPECT_FALSE(result.usd);
  EXPECT_EQ(read_file(small_.run() / "plan.json"), read_file(small_.path()));
  const auto metrics = read_metrics(small_.run() / "metrics.jsonl");
  ASSERT_EQ(metrics.size(), 12u);
  EXPECT_EQ(metrics.back().loss, result.loss);
  EXPECT_TRUE(metrics[4].validation_loss);
  EXPECT_FALSE(metrics[5].validation_loss);
  EXPECT_NE(read_file(small_.run() / "events.jsonl").find("\"checkpoint\""), std::string::npos);
  for (const int step : {4, 8, 12}) {
    EXPECT_TRUE(verify_checkpoint(small_.run() / "checkpoints" / ("step-" + std::to_string(step))).passed());
  }
  EXPECT_EQ(result.checkpoint, (small_.run() / "checkpoints/step-12").string());
}

TEST_F(TrainTest, TheResultIsOneJsonDocumentWithTheKeysOfTheContract) {
  const Json document = parse_json(train_result_to_json(run(options())), "result");
  std::vector<std::string> keys;
  for (const auto& [key, value] : document.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"steps", "tokens", "loss", "validation_loss", "step_seconds_median",
                                            "tokens_per_second", "mfu", "peak_bytes", "arena_bytes", "restarts", "usd",
                                            "checkpoint"}));
}

TEST_F(TrainTest, AnInterruptedRunGoesOnAndItsMetricsReadAsOneRun) {
  run(options("whole"));
  TrainOptions first = options();
  first.steps = 6;
  run(first);
  TrainOptions second = options();
  second.resume = true;
  const TrainResult result = run(second);
  EXPECT_EQ(result.restarts, 1);
  const auto whole = read_metrics(small_.run("whole") / "metrics.jsonl"),
             parts = read_metrics(small_.run() / "metrics.jsonl");
  ASSERT_EQ(parts.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(parts[i].loss, whole[i].loss) << "step " << i + 1;
  EXPECT_TRUE(diff_checkpoints(small_.run("whole") / "checkpoints/step-12", result.checkpoint).identical);
}

TEST_F(TrainTest, ResumingFromAnEarlierStepReplaysItAgainstTheRecord) {
  run(options());
  TrainOptions again = options();
  again.resume = true;
  again.resume_step = 8;
  run(again);
  const std::string events = read_file(small_.run() / "events.jsonl");
  EXPECT_NE(events.find("the replayed step has the recorded loss"), std::string::npos);
  EXPECT_EQ(read_metrics(small_.run() / "metrics.jsonl").size(), 12u);
}

TEST_F(TrainTest, ABatchRampIsTrainedResumedAndReportedByItsFullSteps) {
  small_.plan.job.batch_ramp = {{2, 3 * 2 * 16}};  // three steps of 2 sequences, then 4
  small_.write();
  TrainOptions first = options();
  first.steps = 2;
  run(first);
  const ReportResult early = report(small_.run());
  for (const StressCheck& check : early.checks) EXPECT_NE(check.name, "step_seconds") << "no full step was made";
  EXPECT_NEAR(early.tokens_per_second, 2 * 16 / early.step_seconds_median, 1e-6 * early.tokens_per_second);

  TrainOptions second = options();
  second.resume = true;
  const TrainResult result = run(second);
  EXPECT_EQ(result.steps, 12);
  EXPECT_EQ(result.tokens, (3 * 2 + 9 * 4) * 16);
  EXPECT_EQ(result.arena_bytes, small_.plan.predicted.arena_bytes);
  EXPECT_NEAR(result.tokens_per_second, 4 * 16 / result.step_seconds_median, 1e-6 * result.tokens_per_second);
  const auto metrics = read_metrics(small_.run() / "metrics.jsonl");
  ASSERT_EQ(metrics.size(), 12u);
  EXPECT_EQ(metrics[2].tokens, 3 * 2 * 16);
  EXPECT_EQ(metrics[3].tokens, (3 * 2 + 4) * 16);
  ASSERT_TRUE(metrics[2].mfu && metrics[3].mfu);
  EXPECT_NEAR(*metrics[2].mfu * metrics[2].step_seconds * 2, *metrics[3].mfu * metrics[3].step_seconds, 1e-9);
  EXPECT_EQ(report(small_.run()).checks.front().name, "step_seconds");
  EXPECT_NE(read_file(small_.run() / "events.jsonl").find("steps of 4 sequences from here on"), std::string::npos);

  run(options("whole"));
  EXPECT_TRUE(diff_checkpoints(small_.run("whole") / "checkpoints/step-12", result.checkpoint).identical);
}

TEST_F(TrainTest, APriceGivesACost) {
  small_.plan.job.usd_per_device_hour = 3600;
  small_.write();
  const TrainResult result = run(options());
  ASSERT_TRUE(result.usd);
  EXPECT_GT(*result.usd, 0);
}

TEST_F(TrainTest, AFolderThatHoldsARunIsNotOverwritten) {
  run(options());
  EXPECT_NE(refusal([&] { run(options()); }).find("--resume"), std::string::npos);
  EXPECT_EQ(read_metrics(small_.run() / "metrics.jsonl").size(), 12u);
}

TEST_F(TrainTest, AFolderOfForeignFilesIsCalledNotEmptyAndNotARun) {
  std::filesystem::create_directories(small_.run());
  write_file_atomically(small_.run() / "notes.txt", "mine");
  const std::string text = refusal([&] { check_train(options()); });
  EXPECT_NE(text.find("not empty"), std::string::npos) << text;
  EXPECT_EQ(text.find("--resume"), std::string::npos) << text;
}

TEST_F(TrainTest, ARunThatIsAlreadyThereDoesNothingAndKeepsItsState) {
  run(options());
  TrainOptions again = options();
  again.resume = true;
  again.steps = 12;
  const TrainResult result = run(again);
  EXPECT_EQ(result.steps, 12);
  EXPECT_EQ(result.step_seconds_median, 0);
  EXPECT_FALSE(result.stopped);
  EXPECT_NE(read_file(small_.run() / "events.jsonl").find("nothing to do"), std::string::npos);
  EXPECT_EQ(read_metrics(small_.run() / "metrics.jsonl").size(), 12u);
}

TEST_F(TrainTest, AReportOfAPlanSaysThatItNeedsTheRun) {
  const std::string text = refusal([&] { report(small_.path()); });
  EXPECT_NE(text.find("a folder that foresail train wrote"), std::string::npos) << text;
}

TEST_F(TrainTest, MoreStepsThanThePlanHasAreRefused) {
  TrainOptions too_many = options();
  too_many.steps = 13;
  EXPECT_NE(refusal([&] { run(too_many); }).find("--steps"), std::string::npos);
}

TEST_F(TrainTest, APlanWhoseProgramOrArenaDiffersIsRefused) {
  small_.plan.predicted.arena_bytes += 64;
  small_.write();
  EXPECT_NE(refusal([&] { run(options()); }).find("arena"), std::string::npos);
  small_.plan.program_digests[0][0] ^= 1;
  small_.write();
  EXPECT_NE(refusal([&] { run(options()); }).find("program_digests"), std::string::npos);
  EXPECT_NE(refusal([&] { check_train(options()); }).find("program_digests"), std::string::npos)
      << "before ranks start";
  EXPECT_FALSE(std::filesystem::exists(small_.run())) << "nothing is left behind";
}

TEST_F(TrainTest, AStrategyThatTheCompilerRefusesIsNamedWithFileKeyAndLayerBeforeRanksStart) {
  small_.plan.strategy.recompute_layers = {{0, 0, Recompute::none, {"foo"}}};
  small_.write();
  const std::string unknown = refusal([&] { check_train(options()); });
  for (const char* part : {"plan.json", "recompute_layers", "layers 0", "'foo'", "normed_1"}) {
    EXPECT_NE(unknown.find(part), std::string::npos) << part << " in " << unknown;
  }
  small_.plan.strategy.recompute_layers.clear();
  small_.plan.strategy.accumulate_dtype = DType::f16;
  small_.write();
  const std::string accumulated = refusal([&] { check_train(options()); });
  for (const char* part : {"plan.json", "accumulate_dtype=f16", "cpu", "accumulate_dtype=f32 or f64"}) {
    EXPECT_NE(accumulated.find(part), std::string::npos) << part << " in " << accumulated;
  }
}

TEST_F(TrainTest, APlanThatListsTooLittleWorkspaceIsRefusedNamingTheOperator) {
  small_.plan.target.workspace_bytes.clear();
  small_.plan.program_digests.clear();
  small_.write();
  const Plan& plan = small_.plan;
  const ModelSpec model = parse_model_config(plan.model_config, "test");
  small_.plan.program_digests = {program_digest(compile(model, plan.job, plan.strategy, plan.target, 0).train)};
  small_.write();
  EXPECT_NE(refusal([&] { run(options()); }).find("bytes of workspace"), std::string::npos);
}

TEST_F(TrainTest, MissingOrUnfitDataIsRefusedBeforeAnythingIsStarted) {
  TrainOptions missing = options();
  missing.data = small_.folder() / "nothing";
  refusal([&] { check_train(missing); });
  missing.data.clear();
  EXPECT_NE(refusal([&] { check_train(missing); }).find("--data"), std::string::npos);
}

TEST_F(TrainTest, AnotherPrecisionThanTheReferenceDevicesIsRefusedBeforeRanksStart) {
  TrainOptions slow = options();
  slow.device = "reference";
  EXPECT_NE(refusal([&] { check_train(slow); }).find("fp64 in job.json"), std::string::npos);
}

TEST_F(TrainTest, APlanForACatalogueMachineIsRefused) {
  small_.plan.target.back_end = "catalogue";
  small_.write();
  EXPECT_NE(refusal([&] { check_train(options()); }).find("catalogue"), std::string::npos);
}

TEST_F(TrainTest, InitStartsFromThoseParameters) {
  const TrainResult donor = run(options("donor"));
  TrainOptions next = options();
  next.init = donor.checkpoint;
  next.steps = 1;
  EXPECT_LT(run(next).loss, std::log(257.0) - 1);
}

}  // namespace
}  // namespace foresail
