// Element types of tensors in a Program. Which of them a back end has kernels for is its own matter.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace foresail {

enum class DType : uint8_t { f64, f32, bf16, f16, i32 };

/// Bytes of one element.
constexpr int64_t size_of(DType type) {
  switch (type) {
    case DType::f64: return 8;
    case DType::f32: return 4;
    case DType::i32: return 4;
    case DType::bf16: return 2;
    case DType::f16: return 2;
  }
  return 0;
}

/// "f64", "f32", "bf16", "f16", "i32".
constexpr std::string_view name_of(DType type) {
  switch (type) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::i32: return "i32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
  }
  return "";
}

constexpr std::optional<DType> dtype_from_name(std::string_view name) {
  for (DType type : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32}) {
    if (name == name_of(type)) return type;
  }
  return std::nullopt;
}

/// Element types of one training run.
struct Precision {
  DType parameter = DType::f32;
  DType activation = DType::f32;
  DType gradient = DType::f32;   ///< accumulators of weight gradients
  DType moment = DType::f32;     ///< both AdamW moments
  DType statistic = DType::f32;  ///< norm statistics, log-sum-exp
  bool master_copy = false;      ///< an extra f32 copy of the parameters, which the optimizer updates
  bool operator==(const Precision&) const = default;
};

constexpr Precision kFloat32Precision{};
/// The oracle: every number a double.
constexpr Precision kFloat64Precision{DType::f64, DType::f64, DType::f64, DType::f64, DType::f64, false};
/// Mixed precision as in Megatron: 16-bit parameters and activations, fp32 gradients, master and moments.
constexpr Precision kMixedFloat16Precision{DType::f16, DType::f16, DType::f32, DType::f32, DType::f32, true};
constexpr Precision kMixedBfloat16Precision{DType::bf16, DType::bf16, DType::f32, DType::f32, DType::f32, true};

}  // namespace foresail
