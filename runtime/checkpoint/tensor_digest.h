// Digests of logical tensors that do not depend on how a plan cuts them: every element is hashed with its place in the
// tensor, and the hashes are added, so that ranks can add what each of them holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "core/dtype.h"

namespace foresail {

/// Rows and columns of a logical tensor ([n] counts as n rows of one column).
struct Rectangle {
  int64_t row_begin = 0, row_end = 0, column_begin = 0, column_end = 0;

  int64_t rows() const { return row_end - row_begin; }
  int64_t columns() const { return column_end - column_begin; }
  int64_t elements() const { return rows() * columns(); }
  auto operator<=>(const Rectangle&) const = default;
};

/// Empty (rows() or columns() <= 0) if they do not meet.
Rectangle intersection(const Rectangle& left, const Rectangle& right);

/// Two sums modulo 2^64.
struct ElementSum {
  uint64_t low = 0, high = 0;

  ElementSum& operator+=(const ElementSum& other) {
    low += other.low;
    high += other.high;
    return *this;
  }
  bool operator==(const ElementSum&) const = default;
};

/// Over the elements of `part` of a tensor that has `tensor_columns` columns; `data` is the part, row-major, its rows
/// `row_stride` elements apart. Bits are hashed, so -0 differs from 0. Uses the process's threads; the result does not
/// depend on their number.
ElementSum sum_elements(const std::byte* data, DType dtype, const Rectangle& part, int64_t row_stride,
                        int64_t tensor_columns);

/// 32 hexadecimal digits.
std::string hex_of(const ElementSum& sum);
/// Digest of named digests, in order of name.
std::string combine_digests(const std::map<std::string, std::string>& digest_by_name);

}  // namespace foresail
