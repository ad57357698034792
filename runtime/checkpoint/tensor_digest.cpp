#include "runtime/checkpoint/tensor_digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "core/digest.h"
#include "core/error.h"
#include "core/parallel.h"

namespace foresail {
namespace {

// A hash of (bits, index) in the manner of XXH64's avalanche; its second half is a nonlinear function of the first, so
// that the two sums are not multiples of each other.
inline void add_element(ElementSum& sum, uint64_t bits, uint64_t index) {
  uint64_t x = (bits ^ (index * 0x9E3779B97F4A7C15)) + std::rotl(index, 31);
  x ^= x >> 32;
  x *= 0xC2B2AE3D27D4EB4F;
  x ^= x >> 29;
  x *= 0x165667B19E3779F9;
  x ^= x >> 32;
  sum.low += x;
  sum.high += (x ^ std::rotl(x, 23)) * 0x85EBCA77C2B2AE63;
}

template <typename Bits>
ElementSum sum_run(const std::byte* data, int64_t count, uint64_t first_index) {
  ElementSum sum;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * static_cast<int64_t>(sizeof bits), sizeof bits);
    add_element(sum, bits, first_index + static_cast<uint64_t>(i));
  }
  return sum;
}

template <typename Bits>
ElementSum sum_rows(const std::byte* data, const Rectangle& part, int64_t row_stride, int64_t tensor_columns) {
  std::vector<ElementSum> by_thread(static_cast<size_t>(thread_count()));
  // Rows of full width follow each other without a gap: one long row, cut by elements.
  const bool contiguous = part.columns() == tensor_columns && row_stride == tensor_columns;
  const int64_t width = contiguous ? 1 : part.columns();
  const int64_t count = contiguous ? part.elements() : part.rows();
  const int64_t first = part.row_begin * tensor_columns + part.column_begin;
  constexpr int64_t kGrainElements = 16384;
  parallel_ranges(count, std::max<int64_t>(1, kGrainElements / width), [&](int64_t begin, int64_t end, int thread) {
    ElementSum& sum = by_thread[static_cast<size_t>(thread)];
    if (contiguous) {
      sum += sum_run<Bits>(data + begin * static_cast<int64_t>(sizeof(Bits)), end - begin,
                           static_cast<uint64_t>(first + begin));
      return;
    }
    for (int64_t row = begin; row < end; ++row) {
      sum += sum_run<Bits>(data + row * row_stride * static_cast<int64_t>(sizeof(Bits)), width,
                           static_cast<uint64_t>(first + row * tensor_columns));
    }
  });
  ElementSum total;
  for (const ElementSum& sum : by_thread) total += sum;
  return total;
}

}  // namespace

Rectangle intersection(const Rectangle& left, const Rectangle& right) {
  return {std::max(left.row_begin, right.row_begin), std::min(left.row_end, right.row_end),
          std::max(left.column_begin, right.column_begin), std::min(left.column_end, right.column_end)};
}

ElementSum sum_elements(const std::byte* data, DType dtype, const Rectangle& part, int64_t row_stride,
                        int64_t tensor_columns) {
  if (part.rows() <= 0 || part.columns() <= 0) return {};
  switch (size_of(dtype)) {
    case 8: return sum_rows<uint64_t>(data, part, row_stride, tensor_columns);
    case 4: return sum_rows<uint32_t>(data, part, row_stride, tensor_columns);
    default: break;
  }
  ensure(size_of(dtype) == 2, "elements have 2, 4 or 8 bytes");
  return sum_rows<uint16_t>(data, part, row_stride, tensor_columns);
}

std::string hex_of(const ElementSum& sum) { return fmt::format("{:016x}{:016x}", sum.high, sum.low); }

std::string combine_digests(const std::map<std::string, std::string>& digest_by_name) {
  Digest digest;
  for (const auto& [name, value] : digest_by_name) {
    const std::string line = name + '\n' + value + '\n';
    digest.update(std::as_bytes(std::span(line)));
  }
  return digest.hex();
}

}  // namespace foresail
