#include "runtime/trainer/initialise.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <string>

#include "core/digest.h"
#include "core/error.h"
#include "core/float16.h"
#include "core/parallel.h"
#include "core/philox.h"

namespace foresail {
namespace {

constexpr int64_t kGrain = 4096;

int64_t columns_of(const ParameterSlice& slice) { return slice.shape.size() > 1 ? slice.shape[1] : 1; }

/// One row of a slice. Two normals share a Philox block, so each block is computed once (same numbers as random_normal).
template <typename Scalar>
void fill_normal_row(Scalar* out, int64_t count, double deviation, uint64_t seed, uint64_t stream, uint64_t first) {
  std::array<uint32_t, 4> lanes{};
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t position = first + static_cast<uint64_t>(i);
    if (i == 0 || position % 2 == 0) {
      const uint64_t block = position / 2;
      lanes = philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                          static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                         {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    }
    const size_t lane = position % 2 == 0 ? 0 : 2;
    const double radius = std::sqrt(-2.0 * std::log(uniform_from_bits(lanes[lane])));
    const double angle = 6.283185307179586 * uniform_from_bits(lanes[lane + 1]);
    out[i] = static_cast<Scalar>(deviation * (radius * std::cos(angle)));
  }
}

template <typename Scalar>
void fill_row(const Init& init, Scalar* out, int64_t count, uint64_t seed, uint64_t stream, uint64_t first) {
  switch (init.kind) {
    case InitKind::zeros: std::fill(out, out + count, Scalar{0}); break;
    case InitKind::ones: std::fill(out, out + count, Scalar{1}); break;
    case InitKind::normal: fill_normal_row(out, count, init.standard_deviation, seed, stream, first); break;
  }
}

/// A row in a 16-bit type is the f32 row, rounded: run by run through a buffer.
void fill_rounded_row(const Init& init, DType dtype, std::byte* out, int64_t count, uint64_t seed, uint64_t stream,
                      uint64_t first) {
  std::array<float, 256> run;
  for (int64_t begin = 0; begin < count; begin += std::ssize(run)) {
    const int64_t length = std::min<int64_t>(std::ssize(run), count - begin);
    fill_row(init, run.data(), length, seed, stream, first + static_cast<uint64_t>(begin));
    round_to_16_bit(run.data(), out + begin * size_of(dtype), dtype, length);
  }
}

void fill_slice(const ParameterSlice& slice, uint64_t seed, DType dtype, std::byte* out) {
  const int64_t width = slice.column_end - slice.column_begin;
  const int64_t rows = slice.row_end - slice.row_begin;
  if (width <= 0 || rows <= 0) return;
  ensure(slice.row_stride >= width, "rows of a slice do not overlap");
  const uint64_t stream = stream_of(slice.tensor);
  const int64_t columns = columns_of(slice);
  parallel_ranges(rows, std::max<int64_t>(1, kGrain / width), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      std::byte* at = out + row * slice.row_stride * size_of(dtype);
      const auto first = static_cast<uint64_t>((slice.row_begin + row) * columns + slice.column_begin);
      if (dtype == DType::f64) {
        fill_row(slice.init, reinterpret_cast<double*>(at), width, seed, stream, first);
      } else if (dtype == DType::f32) {
        fill_row(slice.init, reinterpret_cast<float*>(at), width, seed, stream, first);
      } else {
        fill_rounded_row(slice.init, dtype, at, width, seed, stream, first);
      }
    }
  });
}

void fill_segment(std::span<const ParameterSlice> slices, uint64_t seed, DType dtype, std::byte* segment) {
  for (const ParameterSlice& slice : slices) {
    fill_slice(slice, seed, dtype, segment + slice.element_offset * size_of(dtype));
  }
}

void zero(const Segment& segment, std::byte* arena) {
  if (segment.bytes > 0) std::memset(arena + segment.offset, 0, static_cast<size_t>(segment.bytes));
}

}  // namespace

double initial_value(const Init& init, uint64_t seed, uint64_t stream, int64_t row, int64_t columns, int64_t column) {
  switch (init.kind) {
    case InitKind::zeros: return 0;
    case InitKind::ones: return 1;
    case InitKind::normal: break;
  }
  return init.standard_deviation * random_normal(seed, stream, static_cast<uint64_t>(row * columns + column));
}

uint64_t stream_of(std::string_view tensor) {
  const std::string digest = digest_of(tensor);
  return std::stoull(digest.substr(0, 16), nullptr, 16);
}

void initialise(const Program& program, const RankSlices& slices, uint64_t seed, std::byte* arena) {
  const ArenaMap& map = program.arena;
  for (const Segment* segment : {&map.parameters, &map.gradients, &map.master, &map.moment1, &map.moment2}) {
    zero(*segment, arena);  // padding between and beside slices included
  }
  fill_segment(slices.parameters, seed, program.precision.parameter, arena + map.parameters.offset);
  if (map.master.bytes > 0) fill_segment(slices.state, seed, DType::f32, arena + map.master.offset);
}

}  // namespace foresail
