#include "profiler/samples.h"

#include <gtest/gtest.h>

namespace foresail {
namespace {

TEST(Samples, PercentilesLieBetweenNeighbours) {
  EXPECT_EQ(percentile({}, 0.5), 0);
  EXPECT_EQ(percentile({3}, 0.9), 3);
  EXPECT_DOUBLE_EQ(percentile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(percentile({0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100}, 0.9), 90);
}

TEST(Samples, TheSpreadIsHalfTheTenToNinetyRangeOverTheMedian) {
  const Measurement measured = summarise({0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100});
  EXPECT_DOUBLE_EQ(measured.seconds, 50);
  EXPECT_DOUBLE_EQ(measured.spread, 0.8);
  EXPECT_EQ(measured.samples, 11);
}

TEST(Samples, AnOutlierMovesNeitherMedianNorSpread) {
  std::vector<double> values(100, 1.0);
  values.back() = 1000;
  EXPECT_DOUBLE_EQ(summarise(values).seconds, 1);
  EXPECT_DOUBLE_EQ(summarise(values).spread, 0);
}

}  // namespace
}  // namespace foresail
