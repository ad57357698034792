// Elements of stored tensors: what they are worth, and how they become elements of another type.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/dtype.h"

namespace foresail {

/// f64, f32, bf16 and f16: what parameters may be stored in.
bool is_float(DType type);

/// Every number of every type has its double. `values` has one entry per element.
void widen_elements(std::span<const std::byte> elements, DType type, std::span<double> values);

/// What became of the elements that were converted.
struct Conversion {
  int64_t elements = 0;
  int64_t rounded = 0;  ///< those that the other type does not have

  Conversion& operator+=(const Conversion& other) {
    elements += other.elements;
    rounded += other.rounded;
    return *this;
  }
};

/// Copies equal types bit by bit. Otherwise every element goes to the nearest number of the other type, ties to even, in
/// one rounding. Throws bad_input naming `what` for a finite number beyond the range of the other type, and for types that
/// are not floats.
Conversion convert_elements(std::span<const std::byte> from, DType from_type, std::byte* to, DType to_type,
                            const std::string& what);

}  // namespace foresail
