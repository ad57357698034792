#include "workflow/judge.h"

#include <gtest/gtest.h>

namespace foresail {
namespace {

Prediction predicted(double low, double high) {
  Prediction prediction;
  prediction.step_seconds = 1;
  prediction.step_seconds_low = low;
  prediction.step_seconds_high = high;
  return prediction;
}

TEST(Judge, AStepTimePassesWithinTwoAndAHalfHalfWidths) {
  EXPECT_TRUE(judge_step_seconds(predicted(0.9, 1.1), 1.24).passed);
  EXPECT_FALSE(judge_step_seconds(predicted(0.9, 1.1), 1.26).passed);
  EXPECT_FALSE(judge_step_seconds(predicted(0.9, 1.1), 0.74).passed);
}

TEST(Judge, ABandThatReachesZeroIsSaidToSayLittle) {
  EXPECT_NE(judge_step_seconds(predicted(0.5, 1.5), 0.01).why.find("says little"), std::string::npos);
  EXPECT_EQ(judge_step_seconds(predicted(0.9, 1.1), 1).why.find("says little"), std::string::npos);
}

}  // namespace
}  // namespace foresail
