#include "comm/mpi/rank_order.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"

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

template <typename T>
void reduce(std::span<const std::byte* const> sources, std::byte* result, int64_t count, ReduceKind kind) {
  if (kind == ReduceKind::sum) {
    reduce<T, ReduceKind::sum>(sources, result, count);
  } else {
    reduce<T, ReduceKind::max>(sources, result, count);
  }
}

}  // namespace

void check_reducible(DType dtype) {
  ensure(dtype == DType::f64 || dtype == DType::f32 || dtype == DType::i32,
         "MPI reductions are over f64, f32 or i32 elements");
}

void reduce_in_rank_order(std::span<const std::byte* const> sources, std::byte* result, int64_t count, DType dtype,
                          ReduceKind kind) {
  check_reducible(dtype);
  switch (dtype) {
    case DType::f64: return reduce<double>(sources, result, count, kind);
    case DType::f32: return reduce<float>(sources, result, count, kind);
    default: return reduce<int32_t>(sources, result, count, kind);
  }
}

}  // namespace foresail
