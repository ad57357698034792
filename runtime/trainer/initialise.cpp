#include "runtime/trainer/initialise.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <string>

#include <fmt/format.h>

#include "core/digest.h"
#include "core/error.h"
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
void fill_slice(const ParameterSlice& slice, uint64_t seed, Scalar* out) {
  const int64_t width = slice.column_end - slice.column_begin;
  const int64_t rows = slice.row_end - slice.row_begin;
  if (width <= 0 || rows <= 0) return;
  ensure(slice.row_stride >= width, "rows of a slice do not overlap");
  const uint64_t stream = stream_of(slice.tensor);
  const int64_t columns = columns_of(slice);
  parallel_ranges(rows, std::max<int64_t>(1, kGrain / width), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      Scalar* at = out + row * slice.row_stride;
      const int64_t first = (slice.row_begin + row) * columns + slice.column_begin;
      switch (slice.init.kind) {
        case InitKind::zeros: std::fill(at, at + width, Scalar{0}); break;
        case InitKind::ones: std::fill(at, at + width, Scalar{1}); break;
        case InitKind::normal:
          fill_normal_row(at, width, slice.init.standard_deviation, seed, stream, static_cast<uint64_t>(first));
          break;
      }
    }
  });
}

void fill_segment(std::span<const ParameterSlice> slices, uint64_t seed, DType dtype, std::byte* segment) {
  for (const ParameterSlice& slice : slices) {
    std::byte* at = segment + slice.element_offset * size_of(dtype);
    if (dtype == DType::f64) {
      fill_slice(slice, seed, reinterpret_cast<double*>(at));
    } else {
      fill_slice(slice, seed, reinterpret_cast<float*>(at));
    }
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
  const DType dtype = program.precision.parameter;
  if (dtype != DType::f32 && dtype != DType::f64) {
    throw_bad_input(fmt::format("program '{}'", program.name),
                    fmt::format("parameters in {} cannot be initialised on this back end", name_of(dtype)),
                    "use precision fp32 or fp64");
  }
  const ArenaMap& map = program.arena;
  for (const Segment* segment : {&map.parameters, &map.gradients, &map.master, &map.moment1, &map.moment2}) {
    zero(*segment, arena);  // padding between and beside slices included
  }
  fill_segment(slices.parameters, seed, dtype, arena + map.parameters.offset);
  if (map.master.bytes > 0) fill_segment(slices.state, seed, DType::f32, arena + map.master.offset);
}

}  // namespace foresail
