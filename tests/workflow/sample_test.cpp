#include "workflow/sample.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"
#include "runtime/trainer/generator.h"
#include "tests/workflow/small_plan.h"
#include "workflow/train.h"

namespace foresail {
namespace {

class SampleTest : public ::testing::Test {
 protected:
  SampleTest() {
    TrainOptions options;
    options.plan = small_.path();
    options.data = small_.data();
    options.out = small_.run();
    auto communicator = make_local_communicator();
    checkpoint_ = train(options, *communicator).checkpoint;
  }
  TextOptions options() const {
    TextOptions options;
    options.checkpoint = checkpoint_;
    options.prompt = "wind ";
    options.tokens = 70;  // beyond the model's 32 positions: the context slides
    options.threads = 1;
    return options;
  }

  testing::SmallPlan small_;
  std::filesystem::path checkpoint_;
};

TEST_F(SampleTest, ContinuesThePromptAndHandsOutEveryPiece) {
  std::string pieces;
  const TextResult result = sample(options(), [&](const std::string& piece) { pieces += piece; });
  EXPECT_EQ(result.text, "wind " + pieces);
  EXPECT_GT(result.tokens, 0);
  EXPECT_EQ(static_cast<int64_t>(pieces.size()), result.tokens) << "one byte a token";
}

TEST_F(SampleTest, IsAFunctionOfItsSeed) {
  TextOptions other = options();
  other.seed = 2;
  EXPECT_EQ(sample(options()).text, sample(options()).text);
  EXPECT_NE(sample(options()).text, sample(other).text);
}

TEST_F(SampleTest, AtTemperatureZeroTheSeedDoesNotMatter) {
  TextOptions one = options(), other = options();
  one.temperature = other.temperature = 0;
  other.seed = 2;
  EXPECT_EQ(sample(one).text, sample(other).text);
}

TEST_F(SampleTest, ScoresDoNotDependOnTheLengthOfTheProgramThatComputesThem) {
  const Checkpoint checkpoint(checkpoint_);
  Generator narrow(checkpoint, 5, 1), wide(checkpoint, 32, 1);
  const std::vector<int32_t> tokens{119, 105, 110, 100, 32};
  const auto a = narrow.next_scores(tokens);
  const std::vector<float> kept(a.begin(), a.end());
  const auto b = wide.next_scores(tokens);
  for (size_t i = 0; i < kept.size(); ++i) EXPECT_NEAR(kept[i], b[i], 1e-4) << i;
}

TEST_F(SampleTest, AcceptsTheRunFolderToo) {
  TextOptions run = options();
  run.checkpoint = small_.run();
  EXPECT_EQ(sample(run).text, sample(options()).text);
}

TEST_F(SampleTest, RefusesWhatIsNoCheckpoint) {
  TextOptions nothing = options();
  nothing.checkpoint = small_.folder() / "nothing";
  EXPECT_THROW(sample(nothing), Error);
  nothing.checkpoint = small_.folder();
  EXPECT_THROW(sample(nothing), Error);
  TextOptions cold = options();
  cold.temperature = -1;
  EXPECT_THROW(sample(cold), Error);
}

TEST(Draw, FollowsTheProbabilities) {
  const std::vector<float> scores{0.0f, 1.0f, -1.0f};
  int counts[3] = {};
  for (int i = 0; i < 3000; ++i) ++counts[draw(scores, 1, (i + 0.5) / 3000)];
  EXPECT_NEAR(counts[0], 3000 * 0.2447, 2);  // softmax of 0, 1, -1
  EXPECT_NEAR(counts[1], 3000 * 0.6652, 2);
  EXPECT_EQ(draw(scores, 0, 0.999), 1);
}

}  // namespace
}  // namespace foresail
