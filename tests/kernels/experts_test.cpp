// What the operators of a mixture of experts compute, stated without their code: on both devices.
#include <algorithm>
#include <cmath>

#include "kernels/row_map.h"
#include "tests/kernels/backends.h"
#include "tests/kernels/cpu_cases.h"

namespace foresail::kernel_tests {
namespace {

class Experts : public ::testing::TestWithParam<Backend> {
 protected:
  std::vector<std::vector<double>> run(OpKind kind, const OpAttributes& a, const std::vector<Tensor>& inputs,
                                       const std::vector<Tensor>& outputs, const Place& place = {}) const {
    return evaluate_on(*GetParam().make(), kind, a, inputs, outputs, place);
  }
  Tensor real(std::vector<int64_t> shape, std::vector<double> values) const {
    return GetParam().of({std::move(shape), std::move(values)});
  }
  static Tensor ids(std::vector<int64_t> shape, std::vector<double> values) {
    return {std::move(shape), std::move(values), DType::i32};
  }
  static Tensor blank_ids(std::vector<int64_t> shape) {
    Tensor tensor = constant_tensor(std::move(shape), -7);
    tensor.dtype = DType::i32;
    return tensor;
  }
  static Tensor sum(double before) { return constant_tensor({1}, before); }
  const Team team_{1};

  /// Index and gates of one row.
  std::vector<std::vector<double>> route(const OpAttributes& a, const std::vector<double>& logits,
                                         const std::vector<double>& bias = {}) const {
    std::vector<Tensor> inputs{real({1, a.experts}, logits)};
    if (!bias.empty()) inputs.push_back(real({a.experts}, bias));
    return run(OpKind::moe_route, a, inputs,
               {blank_ids({1, a.experts_per_token}), GetParam().blank({1, a.experts_per_token})});
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Experts, ::testing::ValuesIn(kBackends), name_of_backend);

using Numbers = std::vector<double>;

OpAttributes choosing(int64_t experts, int64_t choices) {
  OpAttributes a;
  a.experts = experts;
  a.experts_per_token = choices;
  return a;
}

TEST_P(Experts, ARouterGivesTheBestExpertsInOrderAndGatesThatSumToTheScale) {
  OpAttributes a = choosing(5, 2);
  a.gate_scale = 3;
  const auto routed = route(a, {0, std::log(4.0), -1, std::log(2.0), 0.1});
  EXPECT_EQ(routed[0], (Numbers{1, 3}));
  EXPECT_TRUE(all_near(routed[1], {2, 1}, 1e-6));
}

TEST_P(Experts, GatesThatAreNotNormalisedAreProbabilitiesOfAllExperts) {
  OpAttributes a = choosing(4, 1);
  a.normalise_gates = false;
  EXPECT_TRUE(all_near(route(a, {0, 0, 0, std::log(5.0)})[1], {5.0 / 8}, 1e-6));
  a.scoring = RouterScoring::sigmoid;
  EXPECT_TRUE(all_near(route(a, {0, 0, 0, std::log(5.0)})[1], {5.0 / 6}, 1e-6));
}

TEST_P(Experts, TiesGoToTheLowerExpertAndTheLowerGroup) {
  OpAttributes a = choosing(6, 2);
  EXPECT_EQ(route(a, {0, 1, 1, 1, 0, 1})[0], (Numbers{1, 2}));
  a.expert_groups = 3;
  for (const GroupScore score : {GroupScore::best_expert, GroupScore::sum_of_best_two}) {
    a.group_score = score;
    EXPECT_EQ(route(a, {0, 0, 2, 1, 1, 2})[0], (Numbers{2, 3}));
  }
}

TEST_P(Experts, ACorrectionBiasChoosesButDoesNotWeigh) {
  OpAttributes a = choosing(4, 2);
  a.scoring = RouterScoring::sigmoid;
  const Numbers logits{std::log(3.0), 0, 0, -std::log(3.0)};  // scores 3/4, 1/2, 1/2, 1/4
  const auto routed = route(a, logits, {0, -1, 0, 1});
  EXPECT_EQ(routed[0], (Numbers{3, 0}));
  EXPECT_TRUE(all_near(routed[1], {0.25, 0.75}, 1e-6));
}

TEST_P(Experts, ATokenStaysInItsBestGroups) {
  OpAttributes a = choosing(6, 2);
  a.scoring = RouterScoring::sigmoid;
  a.expert_groups = 2;
  const Numbers logits{2, -5, -5, 1, 1, 0};  // the best expert stands alone in its group
  a.group_score = GroupScore::best_expert;
  EXPECT_EQ(route(a, logits)[0], (Numbers{0, 1}));
  a.group_score = GroupScore::sum_of_best_two;
  EXPECT_EQ(route(a, logits)[0], (Numbers{3, 4}));
}

TEST_P(Experts, ALogitThatIsNoNumberIsChosenAndShows) {
  for (const RouterScoring scoring : {RouterScoring::softmax, RouterScoring::sigmoid}) {
    OpAttributes a = choosing(5, 2);
    a.scoring = scoring;
    const auto routed = route(a, {0, 3, 2, std::nan(""), 1});
    EXPECT_TRUE(std::any_of(routed[1].begin(), routed[1].end(), [](double gate) { return std::isnan(gate); }));
    for (const double expert : routed[0]) EXPECT_TRUE(expert >= 0 && expert < 5);
  }
}

/// Buffers of 2 ranks with 3 experts each.
OpAttributes buffers(int64_t choices, int64_t capacity) {
  OpAttributes a = choosing(6, choices);
  a.expert_ranks = 2;
  a.expert_rows = 2 * capacity;
  return a;
}

TEST_P(Experts, DispatchSortsRowsByExpertAndThenByRow) {
  const Tensor x = real({4, 1}, {10, 20, 30, 40}), index = ids({4, 2}, {5, 0, 2, 5, 0, 3, 0, 2});
  const auto y = run(OpKind::moe_dispatch, buffers(2, 6), {x, index},
                     {GetParam().blank({12, 1}), blank_ids({4, 2}), blank_ids({6}), sum(0.5)});
  EXPECT_EQ(y[0], (Numbers{10, 30, 40, 20, 40, 0, 30, 10, 20, 0, 0, 0}));
  EXPECT_EQ(y[1], (Numbers{7, 0, 3, 8, 1, 6, 2, 4}));
  EXPECT_EQ(y[2], (Numbers{3, 0, 2, 1, 0, 2}));
  EXPECT_EQ(y[3], (Numbers{0.5}));
}

TEST_P(Experts, RowsThatDoNotFitAreCountedAndAddNothing) {
  const OpAttributes a = buffers(2, 2);
  const Tensor x = real({4, 1}, {10, 20, 30, 40}), index = ids({4, 2}, {5, 0, 2, 5, 0, 3, 0, 2});
  const auto y =
      run(OpKind::moe_dispatch, a, {x, index}, {GetParam().blank({4, 1}), blank_ids({4, 2}), blank_ids({6}), sum(1)});
  EXPECT_EQ(y[0], (Numbers{10, 30, 30, 10}));
  EXPECT_EQ(y[1], (Numbers{3, 0, -1, -1, 1, 2, -1, -1}));
  EXPECT_EQ(y[2], (Numbers{2, 0, 0, 1, 0, 1}));
  EXPECT_EQ(y[3], (Numbers{1 + 4}));
  const Tensor slot = ids({4, 2}, y[1]), rows = real({4, 1}, {1, 2, 3, 4}), ones = real({4, 2}, Numbers(8, 1));
  EXPECT_EQ(run(OpKind::moe_combine, a, {rows, slot, ones}, {GetParam().blank({4, 1})})[0], (Numbers{5, 0, 5, 0}));
  EXPECT_EQ(run(OpKind::moe_dispatch_backward, a, {rows, slot}, {GetParam().blank({4, 1})})[0], (Numbers{5, 0, 5, 0}));
}

TEST_P(Experts, RowsComeBackFromWhereTheyWereSent) {
  const int64_t rows = 37, columns = 19, choices = 3;
  const OpAttributes a = buffers(choices, rows * choices);
  const Tensor x = GetParam().random({rows, columns}, 1), logits = GetParam().random({rows, 6}, 2);
  const auto routed =
      run(OpKind::moe_route, a, {logits}, {blank_ids({rows, choices}), GetParam().blank({rows, choices})});
  const Tensor index = ids({rows, choices}, routed[0]), gate = real({rows, choices}, routed[1]);
  const auto sent =
      run(OpKind::moe_dispatch, a, {x, index},
          {GetParam().blank({a.expert_rows, columns}), blank_ids({rows, choices}), blank_ids({6}), sum(0)});
  EXPECT_EQ(sent[3][0], 0);
  const auto y =
      run(OpKind::moe_combine, a, {real({a.expert_rows, columns}, sent[0]), ids({rows, choices}, sent[1]), gate},
          {GetParam().blank({rows, columns})});
  EXPECT_TRUE(all_near(y[0], x.values, 10 * GetParam().tolerance));  // the gates of a row sum to 1
}

TEST_P(Experts, EveryRunMeetsTheWeightOfItsExpert) {
  const int64_t inner = 21, outer = 35, capacity = 11, experts = 3;
  const Tensor x = GetParam().random({2 * capacity, inner}, 1), w = GetParam().random({experts, outer, inner}, 2);
  const Numbers counts{4, 0, 5, 0, 11, 0};
  const auto y = run(OpKind::expert_linear, {}, {x, w, ids({6}, counts)}, {GetParam().blank({2 * capacity, outer})})[0];
  for (int64_t row = 0; row < 2 * capacity; ++row) {
    const int64_t at = row % capacity, expert = row >= capacity ? 1 : at < 4 ? 0 : at < 9 ? 2 : -1;
    Numbers expected(static_cast<size_t>(outer), 0);
    for (int64_t o = 0; expert >= 0 && o < outer; ++o) {
      for (int64_t i = 0; i < inner; ++i) {
        expected[static_cast<size_t>(o)] += x.values[static_cast<size_t>(row * inner + i)] *
                                            w.values[static_cast<size_t>((expert * outer + o) * inner + i)];
      }
    }
    const Numbers actual(y.begin() + row * outer, y.begin() + (row + 1) * outer);
    EXPECT_TRUE(all_near(actual, expected, 50 * GetParam().tolerance)) << "row " << row;
  }
}

TEST_P(Experts, AnExpertWithoutRowsGetsNoGradient) {
  const Tensor x = GetParam().random({4, 3}, 1), dy = GetParam().random({4, 2}, 2);
  const Tensor before = GetParam().random({2, 2, 3}, 3);
  const auto dw = run(OpKind::expert_linear_backward_weight, {}, {dy, x, ids({2}, {0, 3})}, {before})[0];
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(dw[i], before.values[i]);
  for (size_t i = 6; i < 12; ++i) EXPECT_NE(dw[i], before.values[i]);
}

constexpr int64_t kSequences = 2, kLength = 12, kExperts = 5, kChoices = 2;

OpAttributes balanced(RouterScoring scoring) {
  OpAttributes a = choosing(kExperts, kChoices);
  a.scoring = scoring;
  a.sequences = kSequences;
  a.sequence_length = kLength;
  a.balance_coefficient = 0.5;
  a.z_coefficient = 0.25;
  return a;
}

TEST_P(Experts, EvenRoutingCostsTheCoefficientAndEqualLogitsTheirSquaredLogarithm) {
  Place place;
  place.step.inverse_valid_tokens = 1.0 / 32;
  const int64_t rows = kSequences * kLength;
  Numbers stats(static_cast<size_t>(kSequences * 3 * kExperts), 0), targets(static_cast<size_t>(rows), 1);
  targets[3] = targets[4] = targets[5] = -1;  // of sequence 0
  for (int64_t b = 0; b < kSequences; ++b) {
    double* of_sequence = stats.data() + b * 3 * kExperts;
    std::fill_n(of_sequence, kExperts, static_cast<double>(kLength * kChoices) / kExperts);
    of_sequence[2 * kExperts] = b == 0 ? kLength - 3 : kLength;
    of_sequence[2 * kExperts + 1] = kLength;
  }
  for (const RouterScoring scoring : {RouterScoring::softmax, RouterScoring::sigmoid}) {
    const std::vector<Tensor> inputs{real({rows, kExperts}, Numbers(static_cast<size_t>(rows * kExperts), 0)),
                                     ids({rows}, targets), real({kSequences, 3, kExperts}, stats)};
    const double loss = run(OpKind::moe_balance_loss, balanced(scoring), inputs, {sum(2)}, place)[0][0];
    const double z = std::log(static_cast<double>(kExperts));
    EXPECT_NEAR(loss, 2 + (0.5 + 0.25 * z * z) * static_cast<double>(rows - 3) / 32, 1e-6);
  }
}

/// What one rank of the group that shares the sequences computes, from its rows.
struct Share {
  OpAttributes a;
  Place place;
  std::vector<int64_t> rows;  ///< of the whole micro-batch

  Tensor of(const Tensor& whole) const {
    const int64_t columns = whole.shape.size() > 1 ? whole.shape[1] : 1;
    Tensor part{whole.shape, {}, whole.dtype};
    part.shape[0] = static_cast<int64_t>(rows.size());
    for (const int64_t row : rows) {
      part.values.insert(part.values.end(), whole.values.begin() + row * columns,
                         whole.values.begin() + (row + 1) * columns);
    }
    return part;
  }
};

std::vector<Share> shares(const OpAttributes& whole, int64_t degree, int32_t tensor_size) {
  std::vector<Share> result;
  for (int32_t rank = 0; rank < degree * tensor_size; ++rank) {
    Share share{whole, {}, {}};
    share.a.sequence_length = kLength / degree;
    share.a.context_parallel = degree;
    share.a.rows_cut = tensor_size > 1;
    share.place.step.inverse_valid_tokens = 1.0 / 20;
    share.place.context.context_rank = rank / tensor_size;
    share.place.context.context_size = static_cast<int32_t>(degree);
    share.place.context.tensor_rank = rank % tensor_size;
    share.place.context.tensor_size = tensor_size;
    const int64_t rows = kSequences * kLength / degree / tensor_size;
    const RowMap map(share.a, share.place.context, rows);
    for (int64_t row = 0; row < rows; ++row) share.rows.push_back(map.global_row(row));
    result.push_back(share);
  }
  return result;
}

TEST_P(Experts, StatisticsAndLossesDoNotDependOnWhoHoldsTheRows) {
  const Backend& backend = GetParam();
  const int64_t rows = kSequences * kLength;
  const Tensor logits = backend.random({rows, kExperts}, 1);
  Tensor targets = ids({rows}, Numbers(static_cast<size_t>(rows), 3));
  for (const size_t row : {2, 3, 17}) targets.values[row] = -1;
  const auto blank = backend.blank({kSequences, 3, kExperts});
  for (const RouterScoring scoring : {RouterScoring::softmax, RouterScoring::sigmoid}) {
    const OpAttributes a = balanced(scoring);
    const Tensor index = ids({rows, kChoices}, run(OpKind::moe_route, a, {logits},
                                                   {blank_ids({rows, kChoices}), backend.blank({rows, kChoices})})[0]);
    const Share alone = shares(a, 1, 1).front();
    const Numbers whole = run(OpKind::moe_statistics, a, {logits, index, targets}, {blank}, alone.place)[0];
    const Tensor stats = real(blank.shape, whole);
    const double loss = run(OpKind::moe_balance_loss, a, {logits, targets, stats}, {sum(0)}, alone.place)[0][0];
    const Tensor dlogits{logits.shape, run(OpKind::moe_balance_backward, a, {logits, targets, stats},
                                           {backend.blank(logits.shape)}, alone.place)[0]};
    EXPECT_GT(loss, 0);
    for (const auto& [degree, tensor_size] : {std::pair<int64_t, int32_t>{2, 1}, {1, 3}, {3, 2}, {2, 6}}) {
      Numbers added(whole.size(), 0);
      double added_loss = 0;
      for (const Share& share : shares(a, degree, tensor_size)) {
        const Tensor own = share.of(logits), own_targets = share.of(targets);
        const auto part =
            run(OpKind::moe_statistics, share.a, {own, share.of(index), own_targets}, {blank}, share.place);
        for (size_t i = 0; i < added.size(); ++i) added[i] += part[0][i];
        added_loss += run(OpKind::moe_balance_loss, share.a, {own, own_targets, stats}, {sum(0)}, share.place)[0][0];
        const auto gradient = run(OpKind::moe_balance_backward, share.a, {own, own_targets, stats},
                                  {backend.blank(own.shape)}, share.place);
        EXPECT_TRUE(all_near(gradient[0], share.of(dlogits).values, 0));
      }
      EXPECT_TRUE(all_near(added, whole, kLength * backend.tolerance)) << degree << " x " << tensor_size;
      EXPECT_NEAR(added_loss, loss, backend.tolerance);
    }
  }
}

}  // namespace
}  // namespace foresail::kernel_tests
