#include "core/float16.h"

#include <Eigen/Core>

#include "core/error.h"

namespace foresail {
namespace {

template <typename Storage>
void widen_as(const void* from, float* to, int64_t count) {
  const auto* elements = static_cast<const Storage*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(elements[i]);
}

template <typename Storage>
void round_as(const float* from, void* to, int64_t count) {
  auto* elements = static_cast<Storage*>(to);
  for (int64_t i = 0; i < count; ++i) elements[i] = static_cast<Storage>(from[i]);
}

}  // namespace

void widen(const void* from, DType type, float* to, int64_t count) {
  ensure(is_16_bit_float(type), "only 16-bit floats are widened");
  type == DType::f16 ? widen_as<Eigen::half>(from, to, count) : widen_as<Eigen::bfloat16>(from, to, count);
}

void round_to_16_bit(const float* from, void* to, DType type, int64_t count) {
  ensure(is_16_bit_float(type), "only to 16-bit floats is rounded here");
  type == DType::f16 ? round_as<Eigen::half>(from, to, count) : round_as<Eigen::bfloat16>(from, to, count);
}

}  // namespace foresail
