// Operators with 16-bit operands on the cpu device: what the reference computes in double from the same rounded numbers,
// rounded once.
#include "ops/rounded_storage.h"

#include <cmath>
#include <limits>

#include "core/float16.h"
#include "tests/kernels/cpu_cases.h"

namespace foresail::kernel_tests {
namespace {

/// Half the distance between neighbours relative to the number, and the f32 arithmetic before it.
double tolerance_of(DType dtype, OpKind kind) {
  return (dtype == DType::f16 ? 0x1p-11 : 0x1p-8) * 1.001 + cpu_tolerance(kind);
}

class RoundedStorage : public ::testing::TestWithParam<DType> {};

TEST_P(RoundedStorage, EveryKindComputesWhatTheReferenceComputes) {
  const Team team(2);
  const auto cpu = make_cpu_device(2);
  const auto reference = make_reference_device();
  for (const TestCase& test : all_test_cases(GetParam())) {
    const Operands before = random_operands(test);
    const Operands expected = run_case(*reference, in_double(test), before);
    EXPECT_TRUE(outputs_agree(test, expected, run_case(*cpu, test, before), tolerance_of(GetParam(), test.op.kind)));
  }
}

TEST_P(RoundedStorage, ResultsDoNotDependOnSharedBuffers) {
  const Team team(1);
  const auto cpu = make_cpu_device(1);
  int tried = 0;
  for (const TestCase& test : all_test_cases(GetParam())) {
    const Operands before = random_operands(test);
    const Operands expected = run_case(*cpu, test, before);
    for (const InPlace& shared : info(test.op.kind).in_place) {
      if (shared.input >= static_cast<int>(test.op.inputs.size())) continue;
      ++tried;
      EXPECT_TRUE(outputs_agree(test, expected, run_case(*cpu, test, before, {shared}), 0));
    }
  }
  EXPECT_GT(tried, 50);
}

/// As mixed precision compiles it: 16-bit activations, gradients of weights in f32.
TEST_P(RoundedStorage, WeightGradientsAreNotRounded) {
  const Team team(1);
  const auto cpu = make_cpu_device(1);
  const auto reference = make_reference_device();
  for (TestCase test : test_cases_of(OpKind::linear_backward_weight, GetParam())) {
    test.op.outputs[0].dtype = DType::f32;
    const Operands before = random_operands(test);
    const Operands expected = run_case(*reference, in_double(test), before);
    EXPECT_TRUE(outputs_agree(test, expected, run_case(*cpu, test, before), cpu_tolerance(test.op.kind)));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, RoundedStorage, ::testing::Values(DType::f16, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

uint16_t rounded(float value, DType dtype) {
  uint16_t bits = 0;
  round_to_16_bit(&value, &bits, dtype, 1);
  return bits;
}

TEST(Float16, RoundsToNearestTiesToEven) {
  // IEEE 754-2019, 4.3.1; binary16 has 11 significant bits, bfloat16 has 8.
  EXPECT_EQ(rounded(1.0f, DType::f16), 0x3C00);
  EXPECT_EQ(rounded(1.0f + 0x1p-11f, DType::f16), 0x3C00);
  EXPECT_EQ(rounded(1.0f + 3 * 0x1p-11f, DType::f16), 0x3C02);
  EXPECT_EQ(rounded(65519.0f, DType::f16), 0x7BFF);
  EXPECT_EQ(rounded(65520.0f, DType::f16), 0x7C00);
  EXPECT_EQ(rounded(0x1p-24f, DType::f16), 0x0001);
  EXPECT_EQ(rounded(0x1p-25f, DType::f16), 0x0000);
  EXPECT_EQ(rounded(1.0f + 0x1p-8f, DType::bf16), 0x3F80);
  EXPECT_EQ(rounded(1.0f + 3 * 0x1p-8f, DType::bf16), 0x3F82);
  EXPECT_EQ(rounded(-std::numeric_limits<float>::infinity(), DType::bf16), 0xFF80);
}

TEST(Float16, EveryNumberSurvivesTheWayThere) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto stored = static_cast<uint16_t>(bits);
      float wide = 0;
      widen(&stored, dtype, &wide, 1);
      if (std::isnan(wide)) {
        float again = 0;
        const uint16_t back = rounded(wide, dtype);
        widen(&back, dtype, &again, 1);
        EXPECT_TRUE(std::isnan(again));
      } else {
        ASSERT_EQ(rounded(wide, dtype), stored) << name_of(dtype);
      }
    }
  }
}

}  // namespace
}  // namespace foresail::kernel_tests
