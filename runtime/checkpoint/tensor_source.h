// A stored tensor, wherever it is stored: what is needed to read any rectangle of it, a bounded number of bytes at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "program/program.h"
#include "runtime/checkpoint/elements.h"
#include "runtime/checkpoint/tensor_digest.h"

namespace foresail {

/// Elements (row, column), (row, column + 1), ... in the stored type.
using RowSink = std::function<void(int64_t row, int64_t column, std::span<const std::byte> elements)>;

struct TensorSource {
  std::string what;            ///< file and tensor, for errors
  std::vector<int64_t> shape;  ///< [rows, columns] or [n], as the model has it
  DType dtype = DType::f32;
  /// Hands every element of the rectangle to the sink exactly once. What the source names must outlive it. Not for
  /// concurrent use.
  std::function<void(const Rectangle& part, const RowSink& sink)> read;

  int64_t rows() const { return shape[0]; }
  int64_t columns() const { return shape.size() > 1 ? shape[1] : 1; }
};

/// Reads what a rank holds of the tensor to its place in memory: `to` is the slice's first element, of type `dtype`.
/// Throws bad_input naming the tensor for another shape or elements that are missing or cannot be converted.
Conversion fill_slice(const TensorSource& source, const ParameterSlice& slice, std::byte* to, DType dtype);

/// The tensor in order, as bands of whole rows of at most `band_bytes` (one row at least), row-major in memory.
void for_each_band(const TensorSource& source, int64_t band_bytes,
                   const std::function<void(const Rectangle& rows, std::span<const std::byte> elements)>& take);

}  // namespace foresail
