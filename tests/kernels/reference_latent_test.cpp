// Latent attention and YaRN on the reference device: values computed apart and properties.
#include <cmath>

#include "tests/kernels/reference_evaluate.h"

namespace foresail::kernel_tests {
namespace {

/// Two heads of 3 + 4 columns with values of 5.
OpAttributes latent_attributes(int64_t length) {
  OpAttributes a;
  a.sequence_length = length;
  a.heads = a.kv_heads = 2;
  a.head_dim = 7;
  a.rope_dim = 4;
  a.value_dim = 5;
  a.rope_theta = 100;
  return a;
}

Tensor rope_table(const OpAttributes& a) {
  Tensor table = constant_tensor({a.sequence_length, a.rotated_width() / 2, 2}, 0);
  table.values = evaluate(OpKind::rope_table, a, {}, {table})[0];
  return table;
}

/// Packed rows of random q and kv and of the given shared key.
Tensor join(const OpAttributes& a, const Tensor& q, const Tensor& kv, const Tensor& k_rope) {
  Tensor qkv = constant_tensor({q.shape[0], a.qkv_columns()}, 0);
  qkv.values = evaluate(OpKind::latent_join, a, {q, kv, k_rope, rope_table(a)}, {qkv})[0];
  return qkv;
}

TEST(ReferenceLatent, RotatesNeighboursAndGivesEveryHeadTheSharedKey) {
  const OpAttributes a = latent_attributes(3);
  Tensor q = constant_tensor({3, 14}, 0), kv = constant_tensor({3, 16}, 0), k_rope = constant_tensor({3, 4}, 0);
  q.values[2 * 14 + 7 + 1] = 5;       // position 2, head 1: knows no position
  q.values[2 * 14 + 7 + 3] = 1;       // first of pair 0
  q.values[2 * 14 + 6] = 1;           // head 0, second of pair 1
  k_rope.values[2 * 4 + 1] = 1;       // second of pair 0
  kv.values[2 * 16 + 8 + 2] = 3;      // head 1, key
  kv.values[2 * 16 + 8 + 3 + 4] = 7;  // head 1, last of its value
  const Tensor qkv = join(a, q, kv, k_rope);
  const double slow = 2 * std::pow(100, -0.5);  // angle of pair 1 at position 2
  std::vector<double> expected(3 * 38, 0.0);
  double* row = expected.data() + 2 * 38;
  row[7 + 1] = 5;
  row[7 + 3] = std::cos(2);
  row[7 + 4] = std::sin(2);
  row[5] = -std::sin(slow);
  row[6] = std::cos(slow);
  for (const int head : {0, 1}) {
    row[14 + head * 7 + 3] = -std::sin(2);
    row[14 + head * 7 + 4] = std::cos(2);
  }
  row[14 + 7 + 2] = 3;
  row[28 + 5 + 4] = 7;
  EXPECT_TRUE(all_near(qkv.values, expected, 1e-15));
}

TEST(ReferenceLatent, ScoresAreThoseOfHalvesThatWereInterleavedBefore) {
  // transformers sorts the even columns before the odd ones and rotates halves. Scores do not see the order.
  const OpAttributes a = latent_attributes(6);
  const Tensor q = random_tensor({6, 14}, 1), kv = random_tensor({6, 16}, 2), k_rope = random_tensor({6, 4}, 3);
  const Tensor qkv = join(a, q, kv, k_rope);
  const auto sorted = [](const double* x) { return std::vector<double>{x[0], x[2], x[1], x[3]}; };
  const auto rotated = [](const std::vector<double>& x, int position) {
    std::vector<double> y(4);
    for (size_t i = 0; i < 2; ++i) {
      const double angle = position * std::pow(100, -0.5 * static_cast<double>(i));
      y[i] = x[i] * std::cos(angle) - x[i + 2] * std::sin(angle);
      y[i + 2] = x[i + 2] * std::cos(angle) + x[i] * std::sin(angle);
    }
    return y;
  };
  for (int query = 0; query < 6; ++query) {
    for (int key = 0; key <= query; ++key) {
      const auto rope_q = rotated(sorted(q.values.data() + query * 14 + 7 + 3), query);
      const auto rope_k = rotated(sorted(k_rope.values.data() + key * 4), key);
      double expected = 0, actual = 0;
      for (size_t i = 0; i < 3; ++i) expected += q.values[query * 14 + 7 + i] * kv.values[key * 16 + 8 + i];
      for (size_t i = 0; i < 4; ++i) expected += rope_q[i] * rope_k[i];
      for (size_t i = 0; i < 7; ++i) actual += qkv.values[query * 38 + 7 + i] * qkv.values[key * 38 + 14 + 7 + i];
      EXPECT_NEAR(actual, expected, 1e-13) << query << " " << key;
    }
  }
}

TEST(ReferenceLatent, TheGradientOfTheSharedKeyIsTheSumOverTheHeads) {
  const OpAttributes a = latent_attributes(2);
  Tensor dqkv = constant_tensor({2, 38}, 0);
  dqkv.values[14 + 3] = 2;      // position 0, head 0: nothing is rotated there
  dqkv.values[14 + 7 + 3] = 5;  // head 1
  const auto gradients =
      evaluate(OpKind::latent_join_backward, a, {dqkv, rope_table(a)},
               {constant_tensor({2, 14}, 9), constant_tensor({2, 16}, 9), constant_tensor({2, 4}, 9)});
  EXPECT_EQ(gradients[2], (std::vector<double>{7, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(gradients[0], std::vector<double>(28, 0.0));
}

/// Radians per position of every pair, from the table's second row.
std::vector<double> frequencies(const OpAttributes& a) {
  const Tensor table = rope_table(a);
  std::vector<double> result;
  const auto pairs = static_cast<size_t>(a.rotated_width() / 2);
  for (size_t i = 0; i < pairs; ++i) {
    const size_t at = 2 * (pairs + i);
    result.push_back(std::atan2(table.values[at + 1], table.values[at]));
  }
  return result;
}

OpAttributes yarn(int64_t head_dim, double theta, double factor, int64_t original) {
  OpAttributes a;
  a.sequence_length = 2;
  a.heads = a.kv_heads = 1;
  a.head_dim = head_dim;
  a.rope_theta = theta;
  a.rope_scaling = RopeScaling::yarn;
  a.rope_factor = factor;
  a.rope_original_positions = original;
  return a;
}

TEST(ReferenceRope, YarnGivesTheFrequenciesThatPythonComputes) {
  // By _compute_yarn_parameters' formulas, in Python's doubles: of DeepSeek-V2-Lite, of Qwen2.5 with a factor of 4, and
  // where both ends of the ramp are one place.
  struct Case {
    OpAttributes attributes;
    std::vector<std::pair<size_t, double>> expected;
  };
  const Case cases[] = {
      {yarn(64, 1e4, 40, 4096),
       {{0, 1.0},
        {1, 0.7498942093324559},
        {10, 0.056234132519034905},
        {16, 0.0055},
        {22, 0.0001778279410038922},
        {23, 3.33380358040831e-05},
        {31, 3.3338035804083097e-06}}},
      {yarn(128, 1e6, 4, 32768),
       {{1, 0.8058421877614819},
        {23, 0.006978305848598663},
        {31, 0.0008029597275452302},
        {39, 6.490394320837028e-05},
        {40, 4.445698525097307e-05},
        {63, 3.102344401879299e-07}}},
      {yarn(8, 10, 3, 7), {{0, 1.0}, {1, 0.18744710839678302}, {3, 0.05927598033463075}}},
  };
  for (const Case& test : cases) {
    const std::vector<double> found = frequencies(test.attributes);
    for (const auto& [pair, expected] : test.expected) EXPECT_NEAR(found[pair] / expected, 1, 1e-13) << pair;
  }
}

TEST(ReferenceRope, MagnitudeScalesCosinesAndSines) {
  OpAttributes a = yarn(8, 100, 4, 64);
  const Tensor plain = rope_table(a);
  a.rope_magnitude = 1.25;
  const Tensor scaled = rope_table(a);
  for (size_t i = 0; i < plain.values.size(); ++i) EXPECT_EQ(scaled.values[i], 1.25 * plain.values[i]);
}

}  // namespace
}  // namespace foresail::kernel_tests
