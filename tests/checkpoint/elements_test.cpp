// Elements of every type: the numbers that they stand for, and one correct rounding between them.
#include "runtime/checkpoint/elements.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/philox.h"

namespace foresail {
namespace {

template <typename To, typename From>
To converted(From from, DType from_type, DType to_type, Conversion* count = nullptr) {
  To to{};
  const Conversion made =
      convert_elements(std::as_bytes(std::span(&from, 1)), from_type, reinterpret_cast<std::byte*>(&to), to_type, "x");
  if (count != nullptr) *count = made;
  return to;
}

double value_of(uint16_t bits, DType type) {
  double value = 0;
  widen_elements(std::as_bytes(std::span(&bits, 1)), type, std::span(&value, 1));
  return value;
}

bool is_finite(uint16_t bits, DType type) { return std::isfinite(value_of(bits, type)); }

TEST(Elements, SixteenBitNumbersAreWhatTheirFormatsSay) {
  EXPECT_EQ(value_of(0x3F80, DType::bf16), 1);
  EXPECT_EQ(value_of(0xC049, DType::bf16), -3.140625);
  EXPECT_EQ(value_of(0x7F7F, DType::bf16), 3.3895313892515355e38);
  EXPECT_EQ(value_of(0x3C00, DType::f16), 1);
  EXPECT_EQ(value_of(0xC248, DType::f16), -3.140625);
  EXPECT_EQ(value_of(0x7BFF, DType::f16), 65504);
  EXPECT_EQ(value_of(0x0001, DType::f16), std::ldexp(1, -24));
  EXPECT_TRUE(std::isinf(value_of(0xFC00, DType::f16)));
  EXPECT_TRUE(std::isnan(value_of(0x7E01, DType::f16)));
}

TEST(Elements, EverySixteenBitPatternSurvivesWiderTypes) {
  for (const DType type : {DType::bf16, DType::f16}) {
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const auto own = static_cast<uint16_t>(bits);
      if (std::isnan(value_of(own, type))) continue;
      const auto as_float = converted<float>(own, type, DType::f32);
      ASSERT_EQ(as_float, value_of(own, type));
      ASSERT_EQ(converted<uint16_t>(as_float, DType::f32, type), own) << name_of(type) << " " << bits;
      const auto as_double = converted<double>(own, type, DType::f64);
      ASSERT_EQ(converted<uint16_t>(as_double, DType::f64, type), own) << name_of(type) << " " << bits;
    }
  }
}

// Neighbours are neighbouring bit patterns: everything up to the middle goes down, everything above it up, and the middle
// to the even one.
TEST(Elements, RoundingGoesToTheNearestAndTiesToEven) {
  for (const DType type : {DType::bf16, DType::f16}) {
    for (uint32_t bits = 0; is_finite(static_cast<uint16_t>(bits + 1), type); ++bits) {
      const auto low = static_cast<uint16_t>(bits), high = static_cast<uint16_t>(bits + 1);
      const double middle = (value_of(low, type) + value_of(high, type)) / 2;
      const auto even = static_cast<uint16_t>(low % 2 == 0 ? low : high);
      Conversion count;
      ASSERT_EQ(converted<uint16_t>(middle, DType::f64, type, &count), even) << name_of(type) << " " << bits;
      ASSERT_EQ(count.rounded, 1);
      ASSERT_EQ(converted<uint16_t>(std::nextafter(middle, 0.0), DType::f64, type), low) << bits;
      ASSERT_EQ(converted<uint16_t>(std::nextafter(middle, 1e300), DType::f64, type), high) << bits;
      ASSERT_EQ(converted<uint16_t>(-middle, DType::f64, type), even | 0x8000) << bits;
    }
  }
}

// By way of f32 this double becomes a tie, and then the even neighbour: the wrong one.
TEST(Elements, ADoubleIsRoundedOnce) {
  const double above_middle = 1 + std::ldexp(1, -8) + std::ldexp(1, -40);
  EXPECT_EQ(converted<uint16_t>(above_middle, DType::f64, DType::bf16), 0x3F81);
  EXPECT_EQ(converted<uint16_t>(static_cast<float>(above_middle), DType::f32, DType::bf16), 0x3F80);
}

TEST(Elements, NumbersBeyondTheRangeAreRefusedAndInfinitiesAreKept) {
  EXPECT_EQ(converted<uint16_t>(65519.0, DType::f64, DType::f16), 0x7BFF);
  for (const double large : {65520.0, -1e6, 1e300}) {
    EXPECT_THROW(converted<uint16_t>(large, DType::f64, DType::f16), Error) << large;
  }
  EXPECT_THROW(converted<float>(1e39, DType::f64, DType::f32), Error);
  EXPECT_EQ(converted<uint16_t>(HUGE_VAL, DType::f64, DType::f16), 0x7C00);
  EXPECT_TRUE(std::isnan(value_of(converted<uint16_t>(std::nan(""), DType::f64, DType::bf16), DType::bf16)));
  EXPECT_EQ(converted<uint16_t>(-1e-300, DType::f64, DType::bf16), 0x8000);
}

TEST(Elements, EqualTypesKeepEveryBitAndLossIsCounted) {
  std::vector<float> values(1500), same(1500);
  std::vector<uint16_t> narrow(1500);
  int64_t inexact = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(random_normal(1, 2, i));
    inexact += (std::bit_cast<uint32_t>(values[i]) & 0xFFFF) != 0 ? 1 : 0;
  }
  values[7] = std::bit_cast<float>(uint32_t{0x7FC12345});  // a NaN with something to say
  const auto bytes = std::as_bytes(std::span(values));
  convert_elements(bytes, DType::f32, reinterpret_cast<std::byte*>(same.data()), DType::f32, "x");
  EXPECT_EQ(std::memcmp(values.data(), same.data(), bytes.size()), 0);
  values[7] = 0.5F;
  const Conversion made =
      convert_elements(bytes, DType::f32, reinterpret_cast<std::byte*>(narrow.data()), DType::bf16, "x");
  EXPECT_EQ(made.elements, 1500);
  EXPECT_EQ(made.rounded, inexact - 1);
  for (size_t i = 0; i < values.size(); ++i) {  // the widely used bit trick, for finite numbers
    const auto bits = std::bit_cast<uint32_t>(values[i]);
    EXPECT_EQ(narrow[i], (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
  }
}

TEST(Elements, IntegersAreNoParameters) {
  EXPECT_THROW(converted<float>(int32_t{1}, DType::i32, DType::f32), Error);
  EXPECT_THROW(converted<int32_t>(1.0F, DType::f32, DType::i32), Error);
}

}  // namespace
}  // namespace foresail
