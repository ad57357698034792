#include "comm/mpi/rank_order.h"

#include <algorithm>
#include <cstring>

#include "core/float16.h"

namespace foresail {
namespace {

constexpr int64_t kBlock = 512;  // elements held in a local block: stays in the first-level cache

template <typename T>
T larger(T a, T b) {
  return (a > b || a != a) ? a : b;  // a NaN on either side survives
}

template <typename T, ReduceKind kind>
void accumulate(T* __restrict block, const T* __restrict source, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (kind == ReduceKind::sum) {
      block[i] += source[i];
    } else {
      block[i] = larger(block[i], source[i]);
    }
  }
}

template <typename T, ReduceKind kind>
void reduce(std::span<const std::byte* const> sources, std::byte* result, int64_t count) {
  alignas(64) T block[kBlock];
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    const size_t bytes = static_cast<size_t>(length) * sizeof(T);
    std::memcpy(block, sources[0] + begin * sizeof(T), bytes);
    for (const std::byte* source : sources.subspan(1)) {
      accumulate<T, kind>(block, reinterpret_cast<const T*>(source) + begin, length);
    }
    std::memcpy(result + begin * sizeof(T), block, bytes);
  }
}

/// 16-bit elements are summed in f32 and rounded once, behind the last rank.
template <ReduceKind kind>
void reduce_16_bit(std::span<const std::byte* const> sources, std::byte* result, int64_t count, DType dtype) {
  alignas(64) float block[kBlock], source_block[kBlock];
  const int64_t element = size_of(dtype);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    widen(sources[0] + begin * element, dtype, block, length);
    for (const std::byte* source : sources.subspan(1)) {
      widen(source + begin * element, dtype, source_block, length);
      accumulate<float, kind>(block, source_block, length);
    }
    round_to_16_bit(block, result + begin * element, dtype, length);
  }
}

template <typename T>
void reduce(std::span<const std::byte* const> sources, std::byte* result, int64_t count, ReduceKind kind) {
  if (kind == ReduceKind::sum) {
    reduce<T, ReduceKind::sum>(sources, result, count);
  } else {
    reduce<T, ReduceKind::max>(sources, result, count);
  }
}

}  // namespace

void reduce_in_rank_order(std::span<const std::byte* const> sources, std::byte* result, int64_t count, DType dtype,
                          ReduceKind kind) {
  switch (dtype) {
    case DType::f64: return reduce<double>(sources, result, count, kind);
    case DType::f32: return reduce<float>(sources, result, count, kind);
    case DType::i32: return reduce<int32_t>(sources, result, count, kind);
    case DType::f16:
    case DType::bf16: break;
  }
  if (kind == ReduceKind::sum) {
    reduce_16_bit<ReduceKind::sum>(sources, result, count, dtype);
  } else {
    reduce_16_bit<ReduceKind::max>(sources, result, count, dtype);
  }
}

}  // namespace foresail
