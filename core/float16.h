// 16-bit floating-point storage (IEEE 754 binary16 and bfloat16): arithmetic happens in f32, so elements are widened
// before it and rounded to nearest, ties to even, behind it.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace foresail {

constexpr bool is_16_bit_float(DType type) { return type == DType::f16 || type == DType::bf16; }

/// Exact. `from` holds `count` elements of `type`, one of the 16-bit types; no alignment beyond theirs is needed.
void widen(const void* from, DType type, float* to, int64_t count);

/// Beyond the largest finite number lies infinity (f16: from 65520 on); a NaN stays one. Runs may not overlap.
void round_to_16_bit(const float* from, void* to, DType type, int64_t count);

}  // namespace foresail
