// Small matrix products on tiles that lie in cache: c (+)= a b, with c in registers while it grows.
// a is read element by element (broadcast), so any strides serve and a transposed operand costs nothing; rows of b and
// c are read in whole vectors, so their width is a multiple of kTileAlign and their rows are padded to it.
#if defined(FORESAIL_KERNELS_CPU_TILE_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FORESAIL_KERNELS_CPU_TILE_PRODUCT_INL_H_
#undef FORESAIL_KERNELS_CPU_TILE_PRODUCT_INL_H_
#else
#define FORESAIL_KERNELS_CPU_TILE_PRODUCT_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace foresail {
namespace HWY_NAMESPACE {
namespace {

/// Element (i, k) of the left operand lies at data[i * row + k * step].
struct LeftTile {
  const float* data;
  int64_t row, step;
};
struct RightTile {
  const float* data;
  int64_t row;
};
struct ResultTile {
  float* data;
  int64_t row;
  bool add;  ///< to what is there; otherwise it is replaced
};

// AVX-512 has 32 vector registers, the others 16.
constexpr int kBlockRows = HWY_TARGET == HWY_AVX3 ? 8 : 4;
constexpr int kBlockVectors = 2;

/// c[kRows, kVectors vectors] (+)= a b over `depth`. The sums stay in registers only if the loops over them are
/// unrolled, which -O2 does not do by itself (measured: 95 instead of 260 GFLOP/s).
template <int kRows, int kVectors>
HWY_INLINE void block_product(int64_t depth, LeftTile a, RightTile b, ResultTile c) {
  V32 sums[kRows][kVectors];
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) sums[i][v] = c.add ? Whole::load(c.data + i * c.row + v * kLanes) : zero();
  }
  for (int64_t k = 0; k < depth; ++k) {
    V32 right[kVectors];
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) right[v] = Whole::load(b.data + k * b.row + v * kLanes);
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      const V32 left = set(a.data[i * a.row + k * a.step]);
      HWY_UNROLL(8)
      for (int v = 0; v < kVectors; ++v) sums[i][v] = hn::MulAdd(left, right[v], sums[i][v]);
    }
  }
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) Whole::store(sums[i][v], c.data + i * c.row + v * kLanes);
  }
}

template <int kRows>
HWY_INLINE void row_block_product(int64_t columns, int64_t depth, LeftTile a, RightTile b, ResultTile c) {
  constexpr int64_t kStep = kBlockVectors * kLanes;
  int64_t j = 0;
  for (; j + kStep <= columns; j += kStep) {
    block_product<kRows, kBlockVectors>(depth, a, {b.data + j, b.row}, {c.data + j, c.row, c.add});
  }
  for (; j < columns; j += kLanes) block_product<kRows, 1>(depth, a, {b.data + j, b.row}, {c.data + j, c.row, c.add});
}

/// Which part of a tile on the diagonal of causal attention is not zero.
enum class Triangle {
  none,         ///< all of it
  columns,      ///< result: columns up to the row's number
  depth_end,    ///< left operand: row i has entries up to depth i
  depth_begin,  ///< left operand: row i has entries from depth i on
};

/// Work of rows [i, i + rows) of the result. For Triangle::columns a little more than the triangle is computed.
template <int kRows>
HWY_INLINE void tile_rows(int64_t i, int64_t columns, int64_t depth, LeftTile a, RightTile b, ResultTile c,
                          Triangle triangle) {
  a.data += i * a.row;
  c.data += i * c.row;
  const int64_t last = i + kRows;
  if (triangle == Triangle::columns) columns = std::min(columns, (last + kLanes - 1) / kLanes * kLanes);
  if (triangle == Triangle::depth_end) depth = std::min(depth, last);
  if (triangle == Triangle::depth_begin) {
    a.data += i * a.step;
    b.data += i * b.row;
    depth -= i;
  }
  row_block_product<kRows>(columns, depth, a, b, c);
}

/// c[rows, columns] (+)= a[rows, depth] b[depth, columns]; columns is a multiple of the vector length.
HWY_NOINLINE void tile_product(int64_t rows, int64_t columns, int64_t depth, LeftTile a, RightTile b, ResultTile c,
                               Triangle triangle = Triangle::none) {
  int64_t i = 0;
  for (; i + kBlockRows <= rows; i += kBlockRows) tile_rows<kBlockRows>(i, columns, depth, a, b, c, triangle);
  for (; i < rows; ++i) tile_rows<1>(i, columns, depth, a, b, c, triangle);
}

/// Four rows of four elements, transposed: to[k * to_row + j] = from[j * from_row + k].
HWY_INLINE void transpose_4x4(const float* from, int64_t from_row, float* to, int64_t to_row) {
#if HWY_TARGET == HWY_SCALAR
  for (int j = 0; j < 4; ++j) {
    for (int k = 0; k < 4; ++k) to[k * to_row + j] = from[j * from_row + k];
  }
#else
  const hn::FixedTag<float, 4> d;
  const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + from_row);
  const auto r2 = hn::LoadU(d, from + 2 * from_row), r3 = hn::LoadU(d, from + 3 * from_row);
  const auto low02 = hn::InterleaveLower(d, r0, r2), low13 = hn::InterleaveLower(d, r1, r3);
  const auto high02 = hn::InterleaveUpper(d, r0, r2), high13 = hn::InterleaveUpper(d, r1, r3);
  hn::StoreU(hn::InterleaveLower(d, low02, low13), d, to);
  hn::StoreU(hn::InterleaveUpper(d, low02, low13), d, to + to_row);
  hn::StoreU(hn::InterleaveLower(d, high02, high13), d, to + 2 * to_row);
  hn::StoreU(hn::InterleaveUpper(d, high02, high13), d, to + 3 * to_row);
#endif
}

/// to[k * to_row + j] = from[j * from_row + k] for j < rows, k < columns; entries j in [rows, padded_rows) become 0.
HWY_NOINLINE void transpose_tile(const float* from, int64_t from_row, int64_t rows, int64_t columns, float* to,
                                 int64_t to_row, int64_t padded_rows) {
  const int64_t whole_rows = rows / 4 * 4, whole_columns = columns / 4 * 4;
  for (int64_t j = 0; j < whole_rows; j += 4) {
    for (int64_t k = 0; k < whole_columns; k += 4) {
      transpose_4x4(from + j * from_row + k, from_row, to + k * to_row + j, to_row);
    }
  }
  for (int64_t k = 0; k < columns; ++k) {
    for (int64_t j = k < whole_columns ? whole_rows : 0; j < rows; ++j) to[k * to_row + j] = from[j * from_row + k];
    for (int64_t j = rows; j < padded_rows; ++j) to[k * to_row + j] = 0;
  }
}

/// Copies rows of `columns` elements times `factor` and pads them with zeros to `padded_columns`.
HWY_NOINLINE void copy_tile(const float* from, int64_t from_row, int64_t rows, int64_t columns, float factor, float* to,
                            int64_t padded_columns) {
  const V32 scale = set(factor);
  for (int64_t j = 0; j < rows; ++j) {
    const float* source = from + j * from_row;
    float* target = to + j * padded_columns;
    each_vector(columns, [=](auto part, int64_t i) { part.store(hn::Mul(part.load(source + i), scale), target + i); });
    std::fill(target + columns, target + padded_columns, 0.0f);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace foresail
HWY_AFTER_NAMESPACE();

#endif  // toggle
