#include "spec/batch_ramp.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace foresail {
namespace {

/// Sequences of 10 tokens: 2 at a time, then 4, then 8.
Job ramped() {
  Job job;
  job.sequence_length = 10;
  job.global_batch = 8;
  job.batch_ramp = {{2, 100}, {4, 90}};
  job.tokens = 1000;
  return job;
}

TEST(BatchRamp, TokensOfAStageAreRoundedUpToWholeSteps) {
  const auto stages = batch_stages(ramped());
  ASSERT_EQ(stages.size(), 3u);
  EXPECT_EQ(stages[0], (BatchStage{2, 0, 5}));
  EXPECT_EQ(stages[1], (BatchStage{4, 10, 3})) << "90 tokens are more than two steps of 40";
  EXPECT_EQ(stages[2], (BatchStage{8, 22, 10})) << "1000 - 220 tokens in steps of 80";
  EXPECT_EQ(steps_of(ramped()), 18);
}

TEST(BatchRamp, StepsThatAreStatedCountTheRampsToo) {
  Job job = ramped();
  job.steps = 12;
  EXPECT_EQ(batch_stages(job).back().steps, 12 - 8);
  EXPECT_EQ(steps_of(job), 12);
}

TEST(BatchRamp, AShortRunEndsInsideIt) {
  Job job = ramped();
  job.tokens = 130;  // five steps of 20, one of 40
  const auto stages = batch_stages(job);
  EXPECT_EQ(stages[1], (BatchStage{4, 10, 1}));
  EXPECT_EQ(stages[2].steps, 0);
  EXPECT_EQ(steps_of(job), 6);
  job.tokens = 0, job.steps = 3;
  EXPECT_EQ(batch_stages(job)[0].steps, 3);
  EXPECT_EQ(batch_stages(job)[1].steps + batch_stages(job)[2].steps, 0);
}

TEST(BatchRamp, TheLengthOfTheLastStageMayBeOpen) {
  Job job = ramped();
  job.tokens = 0;
  EXPECT_EQ(batch_stages(job).back(), (BatchStage{8, 22, 0}));
  EXPECT_EQ(steps_of(job), 0);
}

TEST(BatchRamp, TheStageFollowsFromTheSamplesConsumed) {
  const auto stages = batch_stages(ramped());
  EXPECT_EQ(batch_stage_at(stages, 0), 0u);
  EXPECT_EQ(batch_stage_at(stages, 8), 0u);
  EXPECT_EQ(batch_stage_at(stages, 10), 1u);
  EXPECT_EQ(batch_stage_at(stages, 21), 1u) << "a run that came here with other batches is still in the stage";
  EXPECT_EQ(batch_stage_at(stages, 22), 2u);
  EXPECT_EQ(batch_stage_at(stages, 1'000'000), 2u);
}

TEST(BatchRamp, WithoutARampThereIsOneStage) {
  Job job = ramped();
  job.batch_ramp.clear();
  EXPECT_EQ(batch_stages(job), (std::vector<BatchStage>{{8, 0, 13}}));
  EXPECT_EQ(batch_ramp_text(job), "");
  EXPECT_EQ(batch_ramp_text(ramped()), "2 for 5 steps, 4 for 3 steps, then 8");
}

TEST(BatchRamp, StepsFollowFromTokensUnlessStated) {
  Job job;
  job.global_batch = 8, job.sequence_length = 1000;
  EXPECT_EQ(steps_of(job), 0);
  job.tokens = 80001;
  EXPECT_EQ(steps_of(job), 11);
  job.steps = 7;
  EXPECT_EQ(steps_of(job), 7);
}

TEST(BatchRamp, LargestNumbersDoNotOverflow) {
  Job job;
  job.sequence_length = job.global_batch = int64_t{1} << 24;
  job.batch_ramp = {{1, int64_t{1} << 60}};
  job.tokens = int64_t{1} << 60;
  EXPECT_EQ(batch_stages(job)[0].steps, int64_t{1} << 36);
  job.tokens = 0, job.steps = int64_t{1} << 40;
  EXPECT_EQ(batch_stages(job)[1].steps, (int64_t{1} << 40) - (int64_t{1} << 36));
}

std::string refusal(const std::string& ramp) {
  try {
    job_from_json("{\"schema\": \"foresail.job/1\", \"global_batch\": 8, \"batch_ramp\": " + ramp + "}", "job.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    return error.what();
  }
  return "";
}

TEST(BatchRamp, AJobWithAnImpossibleRampIsRefused) {
  EXPECT_EQ(refusal("[{\"global_batch\": 2, \"tokens\": 1}, {\"global_batch\": 4, \"tokens\": 1}]"), "");
  EXPECT_NE(refusal("[{\"global_batch\": 4, \"tokens\": 1}, {\"global_batch\": 4, \"tokens\": 1}]")
                .find("'batch_ramp': goes from 4 to 4 sequences: batches must ascend"),
            std::string::npos);
  EXPECT_NE(refusal("[{\"global_batch\": 8, \"tokens\": 1}]").find("'batch_ramp': ends with 8 sequences"),
            std::string::npos);
  for (const char* ramp :
       {"{}", "[1]", "[{}]", "[{\"global_batch\": 2}]", "[{\"global_batch\": 0, \"tokens\": 1}]",
        "[{\"global_batch\": 2, \"tokens\": 0}]", "[{\"global_batch\": 2, \"tokens\": 1, \"steps\": 1}]"}) {
    EXPECT_NE(refusal(ramp).find("batch_ramp"), std::string::npos) << ramp;
  }
}

}  // namespace
}  // namespace foresail
