#include "runtime/checkpoint/elements.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "core/error.h"

namespace foresail {
namespace {

// A 16-bit float: sign, exponent, fraction.
struct Half {
  int fraction_bits, least_exponent;  ///< of normal numbers
  uint64_t infinity;                  ///< its bits
};
constexpr Half kFloat16{10, -14, 0x7C00};
constexpr Half kBfloat16{7, -126, 0x7F80};

constexpr int kDoubleFractionBits = 52, kDoubleBias = 1023;
constexpr uint64_t kDoubleFraction = (uint64_t{1} << kDoubleFractionBits) - 1;

// Straight from the double: by way of a float it would be rounded twice, which may give the other neighbour of a tie.
uint16_t narrow(double value, const Half& half) {
  const auto bits = std::bit_cast<uint64_t>(value);
  const uint64_t sign = bits >> 63 << 15;
  if (std::isnan(value)) return static_cast<uint16_t>(sign | half.infinity | uint64_t{1} << (half.fraction_bits - 1));
  if (std::isinf(value)) return static_cast<uint16_t>(sign | half.infinity);
  const int exponent = static_cast<int>(bits >> kDoubleFractionBits & 2047) - kDoubleBias;
  if (exponent == -kDoubleBias) return static_cast<uint16_t>(sign);  // far below the least number of either type
  const uint64_t significand = (bits & kDoubleFraction) | uint64_t{1} << kDoubleFractionBits;
  const int below = std::max(0, half.least_exponent - exponent);  // a subnormal keeps fewer bits
  const int shift = kDoubleFractionBits - half.fraction_bits + below;
  if (shift > kDoubleFractionBits + 1) return static_cast<uint16_t>(sign);  // less than half of the least number
  uint64_t kept = significand >> shift;
  const uint64_t rest = significand & ((uint64_t{1} << shift) - 1), middle = uint64_t{1} << (shift - 1);
  if (rest > middle || (rest == middle && (kept & 1) != 0)) ++kept;
  // The leading one of a normal number's fraction adds 1 to its exponent field, as does a carry out of the fraction.
  const uint64_t field = static_cast<uint64_t>(std::max(0, exponent - half.least_exponent)) << half.fraction_bits;
  return static_cast<uint16_t>(sign | std::min(field + kept, half.infinity));
}

double widen_float16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

double widen_bfloat16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

template <typename Stored, typename Widen>
void widen_as(std::span<const std::byte> elements, std::span<double> values, const Widen& widen) {
  for (size_t i = 0; i < values.size(); ++i) {
    Stored stored;
    std::memcpy(&stored, elements.data() + i * sizeof stored, sizeof stored);
    values[i] = widen(stored);
  }
}

template <typename Stored, typename Narrow>
void narrow_as(std::span<const double> values, std::byte* to, const Narrow& narrow_one) {
  for (size_t i = 0; i < values.size(); ++i) {
    const Stored stored = narrow_one(values[i]);
    std::memcpy(to + i * sizeof stored, &stored, sizeof stored);
  }
}

void narrow_elements(std::span<const double> values, std::byte* to, DType type) {
  switch (type) {
    case DType::f64: return narrow_as<double>(values, to, [](double value) { return value; });
    case DType::f32: return narrow_as<float>(values, to, [](double value) { return static_cast<float>(value); });
    case DType::bf16: return narrow_as<uint16_t>(values, to, [](double value) { return narrow(value, kBfloat16); });
    case DType::f16: return narrow_as<uint16_t>(values, to, [](double value) { return narrow(value, kFloat16); });
    case DType::i32: break;
  }
  ensure(false, "only floats are rounded");
}

}  // namespace

bool is_float(DType type) { return type != DType::i32; }

void widen_elements(std::span<const std::byte> elements, DType type, std::span<double> values) {
  ensure(std::ssize(elements) == std::ssize(values) * size_of(type), "a value for every element");
  switch (type) {
    case DType::f64: return widen_as<double>(elements, values, [](double value) { return value; });
    case DType::f32: return widen_as<float>(elements, values, [](float value) { return double{value}; });
    case DType::i32: return widen_as<int32_t>(elements, values, [](int32_t value) { return double{1} * value; });
    case DType::bf16: return widen_as<uint16_t>(elements, values, widen_bfloat16);
    case DType::f16: return widen_as<uint16_t>(elements, values, widen_float16);
  }
}

Conversion convert_elements(std::span<const std::byte> from, DType from_type, std::byte* to, DType to_type,
                            const std::string& what) {
  Conversion result{std::ssize(from) / size_of(from_type), 0};
  if (from_type == to_type) {
    std::memcpy(to, from.data(), from.size());
    return result;
  }
  if (!is_float(from_type) || !is_float(to_type)) {
    throw_bad_input(what, fmt::format("cannot be converted from {} to {}", name_of(from_type), name_of(to_type)),
                    "use weights of a floating-point type");
  }
  std::array<double, 512> values, back;
  for (int64_t begin = 0; begin < result.elements; begin += std::ssize(values)) {
    const auto count = static_cast<size_t>(std::min<int64_t>(std::ssize(values), result.elements - begin));
    const auto run =
        from.subspan(static_cast<size_t>(begin * size_of(from_type)), count * static_cast<size_t>(size_of(from_type)));
    std::byte* const out = to + begin * size_of(to_type);
    widen_elements(run, from_type, std::span(values).first(count));
    narrow_elements(std::span(values).first(count), out, to_type);
    if (size_of(to_type) > size_of(from_type)) continue;  // every wider type has every number of a narrower one
    widen_elements({out, count * static_cast<size_t>(size_of(to_type))}, to_type, std::span(back).first(count));
    for (size_t i = 0; i < count; ++i) {
      if (std::isinf(back[i]) && std::isfinite(values[i])) {
        throw_bad_input(what, fmt::format("holds {:g}, which {} does not reach", values[i], name_of(to_type)),
                        "use a type of wider range, such as bf16 or f32");
      }
      result.rounded += back[i] != values[i] && !std::isnan(values[i]) ? 1 : 0;
    }
  }
  return result;
}

}  // namespace foresail
