#include "runtime/checkpoint/tensor_source.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

namespace foresail {
namespace {

// How many of the elements arrived.
void require_all(const TensorSource& source, const Rectangle& part, int64_t arrived) {
  if (arrived == part.elements()) return;
  throw_bad_input(source.what, "does not cover what the plan needs", "use a checkpoint of this model");
}

}  // namespace

Conversion fill_slice(const TensorSource& source, const ParameterSlice& slice, std::byte* to, DType dtype) {
  if (source.shape != slice.shape)
    throw_bad_input(source.what, "has another shape than the model", "use a checkpoint of this model");
  const Rectangle part{slice.row_begin, slice.row_end, slice.column_begin, slice.column_end};
  Conversion result;
  source.read(part, [&](int64_t row, int64_t column, std::span<const std::byte> elements) {
    const int64_t element = (row - part.row_begin) * slice.row_stride + column - part.column_begin;
    result += convert_elements(elements, source.dtype, to + element * size_of(dtype), dtype, source.what);
  });
  require_all(source, part, result.elements);
  return result;
}

void for_each_band(const TensorSource& source, int64_t band_bytes,
                   const std::function<void(const Rectangle& rows, std::span<const std::byte> elements)>& take) {
  const int64_t element_bytes = size_of(source.dtype), columns = source.columns();
  const int64_t step = std::max<int64_t>(1, band_bytes / (columns * element_bytes));
  std::vector<std::byte> band;
  for (int64_t row = 0; row < source.rows(); row += step) {
    const Rectangle rows{row, std::min(source.rows(), row + step), 0, columns};
    band.resize(static_cast<size_t>(rows.elements() * element_bytes));
    int64_t arrived = 0;
    source.read(rows, [&](int64_t at_row, int64_t column, std::span<const std::byte> elements) {
      const int64_t at = ((at_row - rows.row_begin) * columns + column) * element_bytes;
      std::memcpy(band.data() + at, elements.data(), elements.size());
      arrived += std::ssize(elements) / element_bytes;
    });
    require_all(source, rows, arrived);
    take(rows, band);
  }
}

}  // namespace foresail
