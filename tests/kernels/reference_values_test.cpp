// Values and properties of embeddings, norms, products, rotation, activations and dropout.
#include <cmath>
#include <numbers>
#include <set>

#include "core/philox.h"
#include "kernels/dropout_mask.h"
#include "tests/kernels/reference_evaluate.h"

namespace foresail::kernel_tests {
namespace {

Place tensor_place(int32_t rank, int32_t size) {
  Place place;
  place.context.tensor_rank = rank;
  place.context.tensor_size = size;
  return place;
}

TEST(ReferenceEmbedding, ShardsAddUpToTheWholeTableAndOtherRowsAreZero) {
  const Tensor table{{4, 2}, {1, 2, 3, 4, 5, 6, 7, 8}};
  const Tensor tokens = id_tensor({3, 0, 2, 9, -1});
  const Tensor y = constant_tensor({5, 2}, 99);
  EXPECT_EQ(evaluate(OpKind::embedding, {}, {tokens, table}, {y})[0],
            (std::vector<double>{7, 8, 1, 2, 5, 6, 0, 0, 0, 0}));
  const Tensor low{{2, 2}, {1, 2, 3, 4}}, high{{2, 2}, {5, 6, 7, 8}};
  EXPECT_EQ(evaluate(OpKind::embedding, {}, {tokens, low}, {y}, tensor_place(0, 2))[0],
            (std::vector<double>{0, 0, 1, 2, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(evaluate(OpKind::embedding, {}, {tokens, high}, {y}, tensor_place(1, 2))[0],
            (std::vector<double>{7, 8, 0, 0, 5, 6, 0, 0, 0, 0}));
}

TEST(ReferenceEmbedding, GradientOfARepeatedTokenIsSummed) {
  const Tensor dy{{3, 1}, {1, 10, 100}};
  EXPECT_EQ(evaluate(OpKind::embedding_backward, {}, {dy, id_tensor({1, 0, 1})}, {constant_tensor({2, 1}, 0.5)})[0],
            (std::vector<double>{10.5, 101.5}));
  EXPECT_EQ(evaluate(OpKind::embedding_backward, {}, {dy, id_tensor({1, 0, 3})}, {constant_tensor({2, 1}, 0)},
                     tensor_place(1, 2))[0],
            (std::vector<double>{0, 100}));
}

TEST(ReferenceEmbedding, PositionsRestartWithEverySequenceAndUnusedRowsKeepTheirGradient) {
  OpAttributes a;
  a.sequence_length = 2;
  const Tensor table{{3, 1}, {10, 20, 30}};
  EXPECT_EQ(evaluate(OpKind::position_embedding, a, {{{4, 1}, {1, 2, 3, 4}}, table}, {constant_tensor({4, 1}, 0)})[0],
            (std::vector<double>{11, 22, 13, 24}));
  EXPECT_EQ(evaluate(OpKind::position_embedding_backward, a, {{{4, 1}, {1, 2, 3, 4}}}, {table})[0],
            (std::vector<double>{14, 26, 30}));
}

TEST(ReferenceNorm, RmsNormDividesByTheRootMeanSquare) {
  OpAttributes a;
  a.epsilon = 0.5;
  const auto y = evaluate(OpKind::rms_norm, a, {{{1, 2}, {3, 4}}, {{2}, {1, 10}}},
                          {constant_tensor({1, 2}, 0), constant_tensor({1}, 0)});
  const double rstd = 1 / std::sqrt(12.5 + 0.5);
  EXPECT_TRUE(all_near(y[0], {3 * rstd, 40 * rstd}, 1e-15));
  EXPECT_NEAR(y[1][0], rstd, 1e-16);
}

TEST(ReferenceNorm, LayerNormCentersAndUsesTheBiasedVariance) {
  OpAttributes a;
  a.epsilon = 1;
  const auto y = evaluate(OpKind::layer_norm, a, {{{1, 2}, {2, 6}}, {{2}, {1, 10}}, {{2}, {0.5, 0}}},
                          {constant_tensor({1, 2}, 0), constant_tensor({1}, 0), constant_tensor({1}, 0)});
  const double rstd = 1 / std::sqrt(4.0 + 1);
  EXPECT_TRUE(all_near(y[0], {-2 * rstd + 0.5, 20 * rstd}, 1e-15));
  EXPECT_EQ(y[1][0], 4);
  EXPECT_NEAR(y[2][0], rstd, 1e-16);
}

TEST(ReferenceNorm, FusedSumGivesTheSumAndItsNorm) {
  OpAttributes a;
  a.epsilon = 1e-5;
  const Tensor x = random_tensor({3, 8}, 1), r = random_tensor({3, 8}, 2), w = random_tensor({8}, 3),
               b = random_tensor({8}, 4);
  const Tensor stat = constant_tensor({3}, 0);
  Tensor sum = x;
  sum.values = evaluate(OpKind::add, {}, {x, r}, {x})[0];
  const auto rms = evaluate(OpKind::rms_norm, a, {sum, w}, {x, stat});
  EXPECT_EQ(evaluate(OpKind::add_rms_norm, a, {x, r, w}, {x, x, stat}),
            (std::vector<std::vector<double>>{sum.values, rms[0], rms[1]}));
  const auto layer = evaluate(OpKind::layer_norm, a, {sum, w, b}, {x, stat, stat});
  EXPECT_EQ(evaluate(OpKind::add_layer_norm, a, {x, r, w, b}, {x, x, stat, stat}),
            (std::vector<std::vector<double>>{sum.values, layer[0], layer[1], layer[2]}));
}

TEST(ReferenceNorm, QueryKeyNormTreatsEveryHeadAloneAndCopiesValues) {
  OpAttributes a;
  a.heads = 2;
  a.kv_heads = 1;
  a.head_dim = 2;
  a.epsilon = 0;
  const Tensor qkv{{1, 8}, {3, 4, 6, 8, 1, 1, 5, 7}};
  const auto y = evaluate(OpKind::qk_norm, a, {qkv, {{2}, {1, 2}}, {{2}, {10, 10}}}, {qkv, constant_tensor({1, 3}, 0)});
  const double rms = std::sqrt(12.5);
  EXPECT_TRUE(all_near(y[0], {3 / rms, 8 / rms, 3 / rms, 8 / rms, 10, 10, 5, 7}, 1e-14));
  EXPECT_TRUE(all_near(y[1], {1 / rms, 0.5 / rms, 1}, 1e-15));
}

TEST(ReferenceLinear, WeightsAreOutByIn) {
  const Tensor x{{1, 2}, {1, 10}}, w{{3, 2}, {1, 2, 3, 4, 5, 6}}, b{{3}, {0.5, 0, -0.5}},
      y = constant_tensor({1, 3}, 0);
  EXPECT_EQ(evaluate(OpKind::linear, {}, {x, w}, {y})[0], (std::vector<double>{21, 43, 65}));
  EXPECT_EQ(evaluate(OpKind::linear, {}, {x, w, b}, {y})[0], (std::vector<double>{21.5, 43, 64.5}));
  EXPECT_EQ(evaluate(OpKind::bias_add, {}, {y, b}, {y})[0], b.values);
}

OpAttributes rope_attributes(int64_t length) {
  OpAttributes a;
  a.sequence_length = length;
  a.heads = 1;
  a.kv_heads = 1;
  a.head_dim = 8;
  a.rope_theta = 100;
  return a;
}

Tensor rope_table(const OpAttributes& a) {
  Tensor table = constant_tensor({a.sequence_length, a.head_dim / 2, 2}, 0);
  table.values = evaluate(OpKind::rope_table, a, {}, {table})[0];
  return table;
}

TEST(ReferenceRope, RotatesElementIWithElementIPlusHalf) {
  const OpAttributes a = rope_attributes(4);
  Tensor qkv = constant_tensor({4, 24}, 0);
  qkv.values[3 * 24 + 1] = 1;       // position 3, query pair 1
  qkv.values[3 * 24 + 8 + 4] = 1;   // key pair 0, upper half
  qkv.values[3 * 24 + 16 + 2] = 1;  // value
  const auto y = evaluate(OpKind::rope, a, {qkv, rope_table(a)}, {qkv})[0];
  const double angle = 3 * std::pow(100, -0.25);
  std::vector<double> expected(4 * 24, 0.0);
  expected[3 * 24 + 1] = std::cos(angle);
  expected[3 * 24 + 5] = std::sin(angle);
  expected[3 * 24 + 8] = -std::sin(3.0);
  expected[3 * 24 + 12] = std::cos(3.0);
  expected[3 * 24 + 18] = 1;
  EXPECT_TRUE(all_near(y, expected, 1e-15));
}

TEST(ReferenceRope, ProductOfQueryAndKeyDependsOnTheirDistance) {
  const OpAttributes a = rope_attributes(9);
  const Tensor row = random_tensor({1, 24}, 5);
  Tensor qkv{{9, 24}, {}};
  for (int i = 0; i < 9; ++i) qkv.values.insert(qkv.values.end(), row.values.begin(), row.values.end());
  const auto y = evaluate(OpKind::rope, a, {qkv, rope_table(a)}, {qkv})[0];
  const auto product = [&](size_t query, size_t key) {
    double sum = 0;
    for (size_t d = 0; d < 8; ++d) sum += y[query * 24 + d] * y[key * 24 + 8 + d];
    return sum;
  };
  EXPECT_NEAR(product(3, 1), product(8, 6), 1e-13);
  EXPECT_GT(std::abs(product(3, 1) - product(3, 2)), 1e-3);
}

TEST(ReferenceRope, PositionsRestartWithEverySequenceAndBackwardTurnsBack) {
  const OpAttributes a = rope_attributes(3);
  const Tensor qkv = random_tensor({6, 24}, 6), table = rope_table(a);
  Tensor rotated = qkv;
  rotated.values = evaluate(OpKind::rope, a, {qkv, table}, {qkv})[0];
  const Tensor second{{3, 24}, {qkv.values.begin() + 72, qkv.values.end()}};
  EXPECT_EQ(evaluate(OpKind::rope, a, {second, table}, {second})[0],
            std::vector<double>(rotated.values.begin() + 72, rotated.values.end()));
  EXPECT_TRUE(all_near(evaluate(OpKind::rope_backward, a, {rotated, table}, {qkv})[0], qkv.values, 1e-14));
}

/// Radians per position of every pair, from the table's second row.
std::vector<double> frequencies(const OpAttributes& a) {
  const Tensor table = rope_table(a);
  std::vector<double> result;
  for (size_t i = 0; i < static_cast<size_t>(a.head_dim / 2); ++i) {
    const size_t at = static_cast<size_t>(a.head_dim) + 2 * i;
    result.push_back(std::atan2(table.values[at + 1], table.values[at]));
  }
  return result;
}

TEST(ReferenceRope, LinearScalingDividesPositions) {
  OpAttributes a = rope_attributes(2);
  const std::vector<double> plain = frequencies(a);
  a.rope_scaling = RopeScaling::linear;
  a.rope_factor = 4;
  const std::vector<double> scaled = frequencies(a);
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(scaled[i], plain[i] / 4, 1e-15);
}

TEST(ReferenceRope, Llama3ScalingKeepsShortWavesStretchesLongOnesAndBlendsBetween) {
  OpAttributes a = rope_attributes(2);
  a.head_dim = 64;
  a.rope_theta = 500000;
  const std::vector<double> plain = frequencies(a);
  a.rope_scaling = RopeScaling::llama3;
  a.rope_factor = 8;
  a.rope_low_frequency = 1;
  a.rope_high_frequency = 4;
  a.rope_original_positions = 8192;
  const std::vector<double> scaled = frequencies(a);
  std::set<int> bands;
  for (size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2 * std::numbers::pi / plain[i];
    if (wavelength < 2048) {
      bands.insert(0);
      EXPECT_NEAR(scaled[i], plain[i], 1e-15);
    } else if (wavelength > 8192) {
      bands.insert(1);
      EXPECT_NEAR(scaled[i], plain[i] / 8, 1e-15);
    } else {
      bands.insert(2);
      const double smooth = (8192 / wavelength - 1) / 3;
      EXPECT_NEAR(scaled[i], (1 - smooth) * plain[i] / 8 + smooth * plain[i], 1e-15);
    }
  }
  EXPECT_EQ(bands.size(), 3u);
}

TEST(ReferenceActivation, KnownValues) {
  const Tensor x{{1, 3}, {1, 0, -2}};
  // computed with torch.nn.functional.gelu(x, approximate='tanh') in double
  EXPECT_TRUE(all_near(evaluate(OpKind::gelu, {}, {x}, {x})[0], {0.8411919906082768, 0, -0.04540230591222494}, 1e-15));
  EXPECT_TRUE(all_near(evaluate(OpKind::bias_gelu, {}, {x, {{3}, {0, 1, 2}}}, {x})[0],
                       {0.8411919906082768, 0.8411919906082768, 0}, 1e-15));
  const double silu = 1 / (1 + std::exp(-1.0));
  EXPECT_TRUE(all_near(evaluate(OpKind::swiglu, {}, {{{1, 4}, {1, 0, 5, 7}}}, {constant_tensor({1, 2}, 9)})[0],
                       {5 * silu, 0}, 1e-15));
}

Place dropout_place() {
  Place place;
  place.step.seed = 42;
  place.step.step = 7;
  place.context.layer = 1;
  place.context.first_row = 5;
  return place;
}

OpAttributes dropout_attributes(double probability, int32_t site = 2) {
  OpAttributes a;
  a.probability = probability;
  a.random_site = site;
  a.sequence_length = 2;
  return a;
}

std::vector<double> mask_of(const OpAttributes& a, const Place& place, const std::vector<int64_t>& shape = {40, 50}) {
  const Tensor ones = constant_tensor(shape, 1);
  return evaluate(OpKind::dropout, a, {ones}, {ones}, place)[0];
}

TEST(ReferenceDropout, KeepsWhereTheUniformOfTheGlobalPositionReachesTheProbability) {
  const auto y = mask_of(dropout_attributes(0.3), dropout_place());
  const uint64_t stream = (uint64_t{7} << 32) + (1 + 1) * 16 + 2;
  for (size_t i = 0; i < y.size(); ++i) {
    const bool kept = uniform_from_bits(random_bits(42, stream, 5 * 50 + i)) >= 0.3;
    EXPECT_EQ(y[i], kept ? 1 / 0.7 : 0) << i;
  }
}

TEST(ReferenceDropout, ThresholdAgreesWithTheUniformAtItsEdges) {
  KernelContext context;
  const StepInputs step;
  context.step = &step;
  for (const double probability :
       {0.0, 1e-12, 0x1p-33, 0x1p-32, 0.1, 0.25, 0.5, 1.0 / 3, 0.9, 1 - 0x1p-33, 1 - 0x1p-34}) {
    const DropoutMask mask = dropout_mask(dropout_attributes(probability), context);
    for (int64_t near = -2; near <= 2; ++near) {
      const int64_t bits = static_cast<int64_t>(mask.threshold) + near;
      if (bits < 0 || bits > 0xFFFFFFFF) continue;
      EXPECT_EQ(static_cast<uint64_t>(bits) >= mask.threshold,
                uniform_from_bits(static_cast<uint32_t>(bits)) >= probability)
          << probability << " at " << bits;
    }
  }
}

TEST(ReferenceDropout, DropsTheStatedShare) {
  int64_t dropped = 0;
  for (const double value : mask_of(dropout_attributes(0.3), dropout_place())) dropped += value == 0 ? 1 : 0;
  EXPECT_NEAR(dropped / 2000.0, 0.3, 0.04);  // four standard deviations
}

TEST(ReferenceDropout, EveryStepLayerSiteAndSeedHasItsOwnMask) {
  const auto base = mask_of(dropout_attributes(0.3), dropout_place());
  Place step = dropout_place(), layer = dropout_place(), seed = dropout_place(), embedding = dropout_place();
  step.step.step = 8;
  layer.context.layer = 2;
  seed.step.seed = 43;
  embedding.context.layer = -1;
  std::set<std::vector<double>> masks{base};
  for (const Place& place : {step, layer, seed, embedding}) masks.insert(mask_of(dropout_attributes(0.3), place));
  masks.insert(mask_of(dropout_attributes(0.3, 3), dropout_place()));
  EXPECT_EQ(masks.size(), 6u);
  EXPECT_EQ(mask_of(dropout_attributes(0.3), dropout_place()), base);
}

TEST(ReferenceDropout, RowsOfALaterMicroBatchContinueTheMask) {
  const auto whole = mask_of(dropout_attributes(0.3), dropout_place());
  Place later = dropout_place();
  later.context.first_row += 10;
  const auto part = mask_of(dropout_attributes(0.3), later, {30, 50});
  EXPECT_EQ(part, std::vector<double>(whole.begin() + 500, whole.end()));
}

TEST(ReferenceDropout, ProbabilityZeroCopies) {
  const Tensor x = random_tensor({4, 5}, 8);
  EXPECT_EQ(evaluate(OpKind::dropout, dropout_attributes(0), {x}, {x}, dropout_place())[0], x.values);
}

}  // namespace
}  // namespace foresail::kernel_tests
