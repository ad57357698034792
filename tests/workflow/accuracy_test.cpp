#include "workflow/accuracy.h"

#include <gtest/gtest.h>

namespace foresail {
namespace {

TEST(Accuracy, FiguresByHand) {
  const std::vector<Comparison> rows = {{10, 11, 10, 12}, {20, 18, 17, 19}, {5, 5, 4, 6}};
  const ErrorFigures figures = error_figures(rows);
  EXPECT_NEAR(*figures.mape, (0.1 + 0.1 + 0) / 3, 1e-12);
  EXPECT_NEAR(*figures.bias, 0, 1e-12);
  EXPECT_NEAR(*figures.median_ape, 0.1, 1e-12);
  EXPECT_NEAR(*figures.max_ape, 0.1, 1e-12);
  EXPECT_NEAR(*figures.interval_coverage, 2.0 / 3, 1e-12);  // 20 lies above 19
  EXPECT_NEAR(*figures.interval_width, 2.0 / 22, 1e-12);
}

TEST(Accuracy, NothingUsedNothingClaimed) {
  const ErrorFigures figures = error_figures({});
  EXPECT_FALSE(figures.mape || figures.bias || figures.interval_coverage);
}

TEST(Accuracy, QuantilesInterpolate) {
  EXPECT_DOUBLE_EQ(quantile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile({1, 2, 3}, 1), 3);
}

TEST(Accuracy, RankCorrelationKnowsOrderAndTies) {
  const std::vector<Comparison> same = {{1, 10, 0, 0}, {2, 20, 0, 0}, {3, 25, 0, 0}};
  const std::vector<Comparison> reversed = {{1, 30, 0, 0}, {2, 20, 0, 0}, {3, 10, 0, 0}};
  const std::vector<Comparison> tied = {{1, 10, 0, 0}, {2, 10, 0, 0}, {3, 20, 0, 0}};
  EXPECT_DOUBLE_EQ(*spearman(same), 1);
  EXPECT_DOUBLE_EQ(*spearman(reversed), -1);
  EXPECT_NEAR(*spearman(tied), 0.8660254, 1e-6);
  EXPECT_FALSE(spearman(std::vector<Comparison>{{1, 1, 0, 0}}));
  EXPECT_FALSE(spearman(std::vector<Comparison>{{1, 1, 0, 0}, {1, 2, 0, 0}}));
}

TEST(Accuracy, RegretIsWhatThePickCosts) {
  EXPECT_DOUBLE_EQ(regret(std::vector<Comparison>{{1.2, 1, 0, 0}, {1.0, 2, 0, 0}}), 0.2);
  EXPECT_DOUBLE_EQ(regret(std::vector<Comparison>{{1.2, 2, 0, 0}, {1.0, 1, 0, 0}}), 0);
}

}  // namespace
}  // namespace foresail
