// Whole runs in fp16 on the cpu device: they learn what fp32 learns, overflows shrink the loss scale, and the scale is
// part of what a checkpoint keeps.
#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "runtime/trainer/loss_scaler.h"
#include "tests/trainer/small_run.h"

namespace foresail {
namespace {

using testing::run_small;
using testing::small_options;
using testing::small_request;
using testing::SmallResult;
using testing::TemporaryFolder;

SessionRequest cpu_request(const std::string& precision) {
  SessionRequest request = small_request();
  request.target.back_end = "cpu";
  request.job.precision = precision;
  return request;
}

struct Watched {
  SmallResult result;
  std::vector<StepRecord> steps;
  std::vector<RunEvent> scale_events;
};

Watched watch(const SessionRequest& request, TrainerOptions options) {
  Watched watched;
  options.on_step = [&](const StepRecord& record) { watched.steps.push_back(record); };
  options.on_event = [&](const RunEvent& event) {
    if (event.kind == "loss_scale") watched.scale_events.push_back(event);
  };
  watched.result = run_small(request, options);
  return watched;
}

TEST(Float16Training, LearnsWhatFloat32Learns) {
  for (const char* precision : {"fp16", "bf16"}) {
    const TemporaryFolder single, half;
    const Watched expected = watch(cpu_request("fp32"), small_options(single.path(), 60));
    const Watched actual = watch(cpu_request(precision), small_options(half.path(), 60));
    EXPECT_NEAR(actual.steps[0].loss, expected.steps[0].loss, 0.02) << precision;
    EXPECT_NEAR(actual.steps[0].grad_norm, expected.steps[0].grad_norm, 0.02 * expected.steps[0].grad_norm);
    EXPECT_NEAR(*actual.result.report.validation_loss, *expected.result.report.validation_loss, 0.05) << precision;
    EXPECT_LT(*actual.result.report.validation_loss, 2.2) << precision;
    EXPECT_NE(actual.steps[0].loss, expected.steps[0].loss) << "nothing was rounded";
  }
}

TEST(Float16Training, AnOverflowHalvesTheScaleAndLeavesTheUpdateOut) {
  const TemporaryFolder folder;
  SessionRequest request = cpu_request("fp16");
  request.job.loss_scale.initial = 0x1p24;  // the largest gradient of a logit is about 1 / 32: far over 65504
  const Watched run = watch(request, small_options(folder.path(), 40));
  ASSERT_GT(run.scale_events.size(), 5u) << "more overflows in a row than other bad steps may be";
  for (size_t i = 0; i < run.scale_events.size(); ++i) {
    const int64_t step = run.scale_events[i].step;
    if (i < 5) EXPECT_EQ(step, static_cast<int64_t>(i) + 1);
    EXPECT_TRUE(run.steps[static_cast<size_t>(step) - 1].skipped);
  }
  EXPECT_FALSE(run.steps.back().skipped);
  EXPECT_LT(run.result.report.loss, 2.6);
}

TEST(Float16Training, TheScaleItselfChangesNothing) {
  // Powers of two shift exponents; only what falls below the smallest number is lost.
  const TemporaryFolder one, two;
  SessionRequest request = cpu_request("fp16");
  request.job.loss_scale.initial = 1024;
  const Watched low = watch(request, small_options(one.path(), 3));
  request.job.loss_scale.initial = 4096;
  const Watched high = watch(request, small_options(two.path(), 3));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(low.steps[i].grad_norm, high.steps[i].grad_norm, 1e-3 * low.steps[i].grad_norm);
    EXPECT_NEAR(low.steps[i].clip_factor * 1024, high.steps[i].clip_factor * 4096, 1e-3);
  }
}

TEST(Float16Training, SmallGradientsVanishWithoutAScale) {
  const TemporaryFolder one, two;
  SessionRequest request = cpu_request("fp16");
  request.model.init_standard_deviation = 2e-4;  // gradients of the first layers are products of small weights
  request.job.loss_scale = {.initial = 0x1p-12, .minimum = 0x1p-12};
  const Watched without = watch(request, small_options(one.path(), 1));
  request.job.loss_scale = {};
  const Watched with = watch(request, small_options(two.path(), 1));
  const TemporaryFolder three;
  request.job.precision = "fp32";
  const Watched exact = watch(request, small_options(three.path(), 1));
  const double norm = exact.steps[0].grad_norm;
  EXPECT_LT(std::abs(with.steps[0].grad_norm - norm), 0.2 * std::abs(without.steps[0].grad_norm - norm));
}

TEST(Float16Training, ResumeContinuesBitForBitWithTheScale) {
  const TemporaryFolder straight, resumed;
  SessionRequest request = cpu_request("fp16");
  request.job.loss_scale = {.initial = 0x1p22, .growth_interval_steps = 3};
  const SmallResult whole = run_small(request, small_options(straight.path(), 12));
  TrainerOptions options = small_options(resumed.path(), 12);
  options.stop_after = 8;
  run_small(request, options);
  options.stop_after = 12;
  options.resume = true;
  EXPECT_EQ(run_small(request, options).state, whole.state);
}

TEST(LossScaler, GrowsAfterAQuietStretchAndStopsAtItsMinimum) {
  Job job;
  job.precision = "fp16";
  job.loss_scale = {.initial = 4, .minimum = 2, .growth_interval_steps = 2};
  LossScaler scaler = first_loss_scaler(job);
  scaler = after_step(scaler, job, false);
  EXPECT_EQ(scaler, (LossScaler{4, 1}));
  scaler = after_step(scaler, job, false);
  EXPECT_EQ(scaler, (LossScaler{8, 0}));
  EXPECT_EQ(loss_scaler_from(to_text(after_step(scaler, job, false)), "test"), (LossScaler{8, 1}));
  scaler = after_step(after_step(scaler, job, true), job, true);
  EXPECT_EQ(scaler, (LossScaler{2, 0}));
  EXPECT_FALSE(can_shrink(scaler, job));
  EXPECT_EQ(after_step(scaler, job, true), scaler);
  job.precision = "fp32";
  EXPECT_EQ(after_step(first_loss_scaler(job), job, true), (LossScaler{1, 0}));
}

TEST(LossScaler, RefusesTextThatIsNoScale) {
  for (const char* text : {"", "x", "-4 1", "4", "4 1 2", "nan 0", "inf 0", "4 -1"}) {
    EXPECT_THROW(loss_scaler_from(text, "test"), Error) << text;
  }
}

}  // namespace
}  // namespace foresail
