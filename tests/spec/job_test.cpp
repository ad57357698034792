#include "spec/job.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"

namespace foresail {
namespace {

Job from(const std::string& fields) {
  return job_from_json("{\"schema\": \"foresail.job/1\"" + (fields.empty() ? "" : ", " + fields) + "}", "job.json");
}

std::string refusal(const std::string& fields) {
  try {
    from(fields);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    return error.what();
  }
  return "";
}

TEST(Job, EveryFieldHasTheDefaultOfTheStruct) { EXPECT_EQ(job_to_json(from("")), job_to_json(Job{})); }

TEST(Job, ReadsBackBitForBit) {
  Job job;
  job.model = "models/\"odd\" name.json";
  job.sequence_length = 2048;
  job.global_batch = 512;
  job.batch_ramp = {{64, 1'000'000}, {256, (int64_t{1} << 53) + 1}};
  job.tokens = (int64_t{1} << 53) + 1;  // not a double
  job.steps = 7;
  job.precision = "bf16";
  job.dropout = false;
  job.optimizer = {0.1 + 0.2, 1e-7, LearningRateSchedule::constant, 10, 0.9 + 1e-16, 0.999, 1e-12, 0.3, 0};
  job.seed = std::numeric_limits<int64_t>::max();
  job.data_path = "data";
  job.dataset_bytes = 123456789;
  job.validation_fraction = 1.0 / 3;
  job.evaluation_interval_steps = 0;
  job.evaluation_batches = 1;
  job.checkpoint_interval_steps = 0;
  job.checkpoints_kept = 9;
  job.usd_per_device_hour = 2.79;
  const std::string text = job_to_json(job);
  const Job again = job_from_json(text, "t");
  EXPECT_EQ(job_to_json(again), text);
  EXPECT_EQ(again.tokens, job.tokens);
  ASSERT_EQ(again.batch_ramp.size(), 2u);
  EXPECT_EQ(again.batch_ramp[1].tokens, job.batch_ramp[1].tokens);
  EXPECT_EQ(again.optimizer.learning_rate, job.optimizer.learning_rate);
  EXPECT_EQ(again.optimizer.schedule, LearningRateSchedule::constant);
  EXPECT_EQ(again.validation_fraction, job.validation_fraction);
  EXPECT_EQ(again.seed, job.seed);
  EXPECT_FALSE(again.dropout);
}

TEST(Job, RefusesMisspeltAbsurdAndWronglyTypedFields) {
  EXPECT_NE(refusal("\"modle\": \"gpt2\"").find("field 'modle'"), std::string::npos);
  EXPECT_NE(refusal("\"optimizer\": {\"lr\": 1}").find("field 'optimizer.lr'"), std::string::npos);
  for (const std::string fields :
       {"\"sequence_length\": -1", "\"sequence_length\": 1e18", "\"global_batch\": 2.5", "\"tokens\": 1e300",
        "\"precision\": \"fp8\"", "\"precision\": 32", "\"seed\": -1", "\"validation_fraction\": 1",
        "\"dropout\": \"yes\"", "\"checkpoints_kept\": 0", "\"optimizer\": []", "\"optimizer\": {\"beta2\": 1}",
        "\"optimizer\": {\"epsilon\": 0}", "\"optimizer\": {\"learning_rate\": -1}",
        "\"optimizer\": {\"schedule\": \"step\"}", "\"optimizer\": {\"clip_norm\": -1}",
        "\"model\": null, \"model\": 1", "\"optimizer\": {\"learning_rate\": 1e-4, \"minimum_learning_rate\": 1e-3}"}) {
    EXPECT_NE(refusal(fields).find("job.json"), std::string::npos) << fields;
  }
  EXPECT_THROW(job_from_json("{\"schema\": \"foresail.plan/1\"}", "t"), Error);
  EXPECT_THROW(job_from_json("{}", "t"), Error);
  EXPECT_THROW(load_job("/nonexistent/job.json"), Error);
}

TEST(Job, TheMinimumFollowsALearningRateThatIsGivenAlone) {
  EXPECT_EQ(from("\"optimizer\": {\"learning_rate\": 1e-5}").optimizer.minimum_learning_rate, 1e-5 / 10);
  EXPECT_EQ(from("\"optimizer\": {\"clip_norm\": 2}").optimizer.minimum_learning_rate, 3e-5);
}

TEST(Job, PrecisionNamesTheElementTypes) {
  Job job;
  EXPECT_EQ(precision_of(job), kFloat32Precision);
  job.precision = "bf16";
  EXPECT_EQ(precision_of(job), kMixedBfloat16Precision);
  job.precision = "fp16";
  EXPECT_EQ(precision_of(job), kMixedFloat16Precision);
  EXPECT_TRUE(precision_of(job).master_copy);
  job.precision = "fp64";
  EXPECT_EQ(precision_of(job), kFloat64Precision);
  job.precision = "fp8";
  EXPECT_THROW(precision_of(job), Error);
}

TEST(LearningRate, RisesLinearlyToTheFullRateAtTheLastWarmUpStep) {
  const OptimizerJob optimizer{.learning_rate = 1, .minimum_learning_rate = 0.1, .warmup_steps = 10};
  EXPECT_DOUBLE_EQ(learning_rate_at(optimizer, 1, 100), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_at(optimizer, 5, 100), 0.5);
  EXPECT_EQ(learning_rate_at(optimizer, 10, 100), 1);
  EXPECT_LT(learning_rate_at(optimizer, 11, 100), 1);
}

TEST(LearningRate, CosineIsHalfWayInTheMiddleAndAtTheMinimumAtTheEnd) {
  const OptimizerJob optimizer{.learning_rate = 1, .minimum_learning_rate = 0.1, .warmup_steps = 10};
  EXPECT_NEAR(learning_rate_at(optimizer, 60, 110), 0.55, 1e-12);
  EXPECT_EQ(learning_rate_at(optimizer, 110, 110), 0.1);
  EXPECT_EQ(learning_rate_at(optimizer, 1000, 110), 0.1);
  for (int step = 11; step < 110; ++step) {
    EXPECT_GT(learning_rate_at(optimizer, step, 110), learning_rate_at(optimizer, step + 1, 110));
  }
}

TEST(LearningRate, ConstantStaysAndNoWarmUpStartsFull) {
  OptimizerJob optimizer{.learning_rate = 0.5, .minimum_learning_rate = 0, .schedule = LearningRateSchedule::constant};
  EXPECT_EQ(learning_rate_at(optimizer, 1, 10), 0.5);
  EXPECT_EQ(learning_rate_at(optimizer, 1000, 10), 0.5);
  optimizer.schedule = LearningRateSchedule::cosine;
  EXPECT_LT(learning_rate_at(optimizer, 1, 10), 0.5) << "step 1 of 10 is already one tenth down the cosine";
  EXPECT_TRUE(std::isfinite(learning_rate_at(optimizer, 0, 0)));
}

TEST(LearningRate, AWarmUpAsLongAsTheRunIsWellDefined) {
  const OptimizerJob optimizer{.learning_rate = 1, .minimum_learning_rate = 0.1, .warmup_steps = 20};
  EXPECT_DOUBLE_EQ(learning_rate_at(optimizer, 10, 10), 0.5);
  EXPECT_EQ(learning_rate_at(optimizer, 21, 10), 0.1);
}

OptimizerJob wsd(DecayShape shape) {
  OptimizerJob optimizer{.learning_rate = 1,
                         .minimum_learning_rate = 0.2,
                         .schedule = LearningRateSchedule::warmup_stable_decay,
                         .warmup_steps = 10};
  optimizer.decay_shape = shape;
  return optimizer;
}

TEST(LearningRate, WarmUpStableDecayRisesStaysAndFallsOverTheLastSteps) {
  OptimizerJob optimizer = wsd(DecayShape::linear);
  optimizer.decay_steps = 20;
  EXPECT_DOUBLE_EQ(learning_rate_at(optimizer, 5, 100), 0.5);
  for (int step = 10; step <= 80; ++step) EXPECT_EQ(learning_rate_at(optimizer, step, 100), 1) << step;
  EXPECT_NEAR(learning_rate_at(optimizer, 81, 100), 1 - 0.8 / 20, 1e-15);
  EXPECT_NEAR(learning_rate_at(optimizer, 90, 100), 0.6, 1e-15);
  EXPECT_EQ(learning_rate_at(optimizer, 100, 100), 0.2);
  EXPECT_EQ(learning_rate_at(optimizer, 1000, 100), 0.2);
}

TEST(LearningRate, OneMinusSqrtFallsFastAtFirst) {
  OptimizerJob optimizer = wsd(DecayShape::one_minus_sqrt);
  optimizer.decay_steps = 20;
  EXPECT_EQ(learning_rate_at(optimizer, 80, 100), 1);
  EXPECT_NEAR(learning_rate_at(optimizer, 85, 100), 0.2 + 0.8 * 0.5, 1e-15)
      << "a quarter of the decay: half of the way";
  EXPECT_NEAR(learning_rate_at(optimizer, 90, 100), 0.2 + 0.8 * (1 - std::sqrt(0.5)), 1e-15);
  EXPECT_EQ(learning_rate_at(optimizer, 100, 100), 0.2);
  for (int step = 80; step < 100; ++step) {
    EXPECT_GT(learning_rate_at(optimizer, step, 100), learning_rate_at(optimizer, step + 1, 100));
  }
}

TEST(LearningRate, TheDecayIsAShareOfTheRunUnlessStepsAreGivenAndStopsAtTheWarmUp) {
  OptimizerJob optimizer = wsd(DecayShape::linear);
  EXPECT_EQ(learning_rate_at(optimizer, 90, 100), 1) << "a tenth of 100 steps";
  EXPECT_LT(learning_rate_at(optimizer, 91, 100), 1);
  optimizer.decay_fraction = 1;
  EXPECT_EQ(learning_rate_at(optimizer, 10, 100), 1);
  EXPECT_NEAR(learning_rate_at(optimizer, 55, 100), 0.6, 1e-15) << "half of what the warm-up leaves";
  optimizer.decay_fraction = 0;
  EXPECT_EQ(learning_rate_at(optimizer, 99, 100), 1);
  optimizer.decay_steps = 1000;
  EXPECT_DOUBLE_EQ(learning_rate_at(optimizer, 9, 100), 0.9) << "the warm-up is left alone";
  EXPECT_NEAR(learning_rate_at(optimizer, 55, 100), 0.6, 1e-15);
  EXPECT_TRUE(std::isfinite(learning_rate_at(optimizer, 0, 0)));
}

TEST(Job, WarmUpStableDecayReadsBackAndItsKeysAreRefusedElsewhere) {
  const OptimizerJob o =
      from("\"optimizer\": {\"schedule\": \"wsd\", \"decay_shape\": \"1-sqrt\", \"decay_steps\": 7}").optimizer;
  EXPECT_EQ(o.schedule, LearningRateSchedule::warmup_stable_decay);
  EXPECT_EQ(o.decay_shape, DecayShape::one_minus_sqrt);
  EXPECT_EQ(o.decay_steps, 7);
  for (const std::string fields : {"", "\"decay_steps\": 7", "\"decay_fraction\": 0", "\"decay_fraction\": 0.3"}) {
    const Job job = from("\"optimizer\": {\"schedule\": \"wsd\"" + (fields.empty() ? "" : ", " + fields) + "}");
    EXPECT_EQ(job_to_json(job_from_json(job_to_json(job), "t")), job_to_json(job)) << fields;
  }
  EXPECT_NE(
      refusal("\"optimizer\": {\"decay_steps\": 7}").find("'optimizer.decay_steps': only the schedule wsd has it"),
      std::string::npos);
  for (const std::string fields : {"\"decay_steps\": 7, \"decay_fraction\": 0.5", "\"decay_steps\": 0",
                                   "\"decay_fraction\": 1.5", "\"decay_shape\": \"cosine\""}) {
    EXPECT_NE(refusal("\"optimizer\": {\"schedule\": \"wsd\", " + fields + "}").find("'optimizer.decay_"),
              std::string::npos)
        << fields;
  }
}

}  // namespace
}  // namespace foresail
