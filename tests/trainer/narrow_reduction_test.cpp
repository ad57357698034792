// Gradients that ranks send each other in 16 bits: half the bytes, other numbers, the same model in the end.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/trainer/small_run.h"
#include "tests/trainer/thread_world.h"

namespace foresail {
namespace {

struct Curve {
  double first_norm = 0, validation_loss = 0;
};

Curve train(const std::string& strategy) {
  SessionRequest request = testing::small_request();
  request.target.back_end = "cpu";
  request.job.precision = "fp32";
  request.job.global_batch = 8;
  request.strategy = parse_strategy(strategy).strategy;
  const testing::TemporaryFolder folder;
  Curve curve;
  const auto errors = testing::run_world(static_cast<int>(request.strategy.devices()), [&](Communicator& communicator) {
    auto session = make_session(request, communicator, make_device("cpu", 1));
    TrainerOptions options = testing::small_options(folder.path(), 60);
    options.on_step = [&](const StepRecord& record) {
      if (record.step == 1) curve.first_norm = record.grad_norm;
    };
    const TrainerReport report = run_training(*session, communicator, options);
    if (communicator.rank() == 0) curve.validation_loss = report.validation_loss.value();
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return curve;
}

class NarrowReduction : public ::testing::TestWithParam<const char*> {};

TEST_P(NarrowReduction, RoundsGradientsAndTrainsTheModelAllTheSame) {
  const std::string strategy = GetParam();
  const Curve exact = train(strategy);
  for (const auto& [name, last_place] : {std::pair{"bf16", 0x1p-8}, std::pair{"f16", 0x1p-11}}) {
    const Curve narrow = train(strategy + ",reduce_dtype=" + name);
    EXPECT_NE(narrow.first_norm, exact.first_norm) << name << ": nothing was rounded";
    EXPECT_NEAR(narrow.first_norm, exact.first_norm, 2 * last_place * exact.first_norm) << name;
    EXPECT_NEAR(narrow.validation_loss, exact.validation_loss, 0.01 * exact.validation_loss) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Trainer, NarrowReduction,
                         ::testing::Values("dp=2,micro_batch=2", "dp=4,micro_batch=1,zero_stage=1",
                                           "dp=2,micro_batch=2,zero_stage=2", "dp=2,micro_batch=1,zero_stage=3",
                                           "dp=2,micro_batch=2,overlap=true,bucket_bytes=4096",
                                           "dp=2,micro_batch=2,accumulate_dtype=f64"));

}  // namespace
}  // namespace foresail
