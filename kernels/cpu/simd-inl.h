// Per-target helpers: loops over whole vectors with a masked tail, reductions, and activation functions.
// Included once per instruction set; names live in an anonymous namespace of that set.
#if defined(FORESAIL_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FORESAIL_KERNELS_CPU_SIMD_INL_H_
#undef FORESAIL_KERNELS_CPU_SIMD_INL_H_
#else
#define FORESAIL_KERNELS_CPU_SIMD_INL_H_
#endif

#include <cstdint>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace foresail {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using V32 = hn::Vec<F32>;
constexpr int64_t kLanes = hn::MaxLanes(F32());

HWY_INLINE V32 set(float value) { return hn::Set(F32(), value); }
HWY_INLINE V32 zero() { return hn::Zero(F32()); }

/// All lanes of a vector.
struct Whole {
  static HWY_INLINE V32 load(const float* from) { return hn::LoadU(F32(), from); }
  static HWY_INLINE void store(V32 value, float* to) { hn::StoreU(value, F32(), to); }
  /// Inactive lanes take `other`.
  static HWY_INLINE V32 keep(V32 value, V32 /*other*/) { return value; }
};

/// The first lanes of a vector: the end of a row. Memory beyond them is neither read nor written.
class Part {
 public:
  explicit HWY_INLINE Part(int64_t count) : count_(count) {}
  /// Inactive lanes are 0.
  HWY_INLINE V32 load(const float* from) const {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
    return hn::MaskedLoad(mask(), F32(), from);
#else
    HWY_ALIGN float lanes[kLanes] = {};
    for (int64_t i = 0; i < count_; ++i) lanes[i] = from[i];
    return hn::Load(F32(), lanes);
#endif
  }
  HWY_INLINE void store(V32 value, float* to) const {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
    hn::BlendedStore(value, mask(), F32(), to);
#else
    HWY_ALIGN float lanes[kLanes];
    hn::Store(value, F32(), lanes);
    for (int64_t i = 0; i < count_; ++i) to[i] = lanes[i];
#endif
  }
  HWY_INLINE V32 keep(V32 value, V32 other) const { return hn::IfThenElse(mask(), value, other); }

 private:
  HWY_INLINE hn::Mask<F32> mask() const { return hn::FirstN(F32(), static_cast<size_t>(count_)); }
  int64_t count_;
};

/// body(part, i) for every vector that starts at i in [0, count).
template <typename Body>
HWY_INLINE void each_vector(int64_t count, const Body& body) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) body(Whole(), i);
  if (i < count) body(Part(count - i), i);
}

/// Sum of body(part, i) over all vectors; `body` gives 0 in inactive lanes. Four independent sums hide the latency.
template <typename Body>
HWY_INLINE float sum_vectors(int64_t count, const Body& body) {
  V32 s0 = zero(), s1 = zero(), s2 = zero(), s3 = zero();
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    s0 = hn::Add(s0, body(Whole(), i));
    s1 = hn::Add(s1, body(Whole(), i + kLanes));
    s2 = hn::Add(s2, body(Whole(), i + 2 * kLanes));
    s3 = hn::Add(s3, body(Whole(), i + 3 * kLanes));
  }
  for (; i + kLanes <= count; i += kLanes) s0 = hn::Add(s0, body(Whole(), i));
  if (i < count) s1 = hn::Add(s1, body(Part(count - i), i));
  return hn::GetLane(hn::SumOfLanes(F32(), hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

/// Largest of x[0, count); minus infinity if there is none.
HWY_INLINE float max_of(const float* x, int64_t count) {
  const V32 low = set(-__builtin_inff());
  V32 m0 = low, m1 = low, m2 = low, m3 = low;
  int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    m0 = hn::Max(m0, Whole::load(x + i));
    m1 = hn::Max(m1, Whole::load(x + i + kLanes));
    m2 = hn::Max(m2, Whole::load(x + i + 2 * kLanes));
    m3 = hn::Max(m3, Whole::load(x + i + 3 * kLanes));
  }
  for (; i + kLanes <= count; i += kLanes) m0 = hn::Max(m0, Whole::load(x + i));
  if (i < count) {
    const Part part(count - i);
    m1 = hn::Max(m1, part.keep(part.load(x + i), low));
  }
  return hn::GetLane(hn::MaxOfLanes(F32(), hn::Max(hn::Max(m0, m1), hn::Max(m2, m3))));
}

// The library's exp gives 0 for NaN and its log a number, which would hide a run that diverged.
HWY_INLINE V32 exp_of(V32 x) { return hn::IfThenElse(hn::Eq(x, x), hn::Exp(F32(), x), x); }
HWY_INLINE V32 log_of(V32 x) { return hn::IfThenElse(hn::Eq(x, x), hn::Log(F32(), x), x); }

/// 1 / (1 + exp(-x)) as e = exp(-x) and s = 1 / (1 + e), so that 1 - s = e s keeps its precision. Beyond 87 exp would
/// leave the range of float; s is then below the smallest normal number.
struct Sigmoid {
  V32 value, complement;
};
HWY_INLINE Sigmoid sigmoid(V32 x) {
  const V32 e = exp_of(hn::Min(set(87.0f), hn::Neg(x)));  // in this order a NaN stays one
  const V32 s = hn::Div(set(1.0f), hn::Add(set(1.0f), e));
  return {s, hn::Mul(e, s)};
}

// GELU by its tanh approximation (Hendrycks & Gimpel 2016): x/2 (1 + tanh u) = x sigmoid(2u),
// u = sqrt(2/pi) (x + 0.044715 x^3).
constexpr float kGeluScale = 1.5957691216057308f;  // 2 sqrt(2/pi)
constexpr float kGeluCubic = 0.044715f;

HWY_INLINE V32 gelu_of(V32 x) {
  const V32 square = hn::Mul(x, x);
  const V32 two_u = hn::Mul(hn::Mul(set(kGeluScale), x), hn::MulAdd(set(kGeluCubic), square, set(1.0f)));
  return hn::Mul(x, sigmoid(two_u).value);
}

HWY_INLINE V32 gelu_slope(V32 x) {
  const V32 square = hn::Mul(x, x);
  const V32 two_u = hn::Mul(hn::Mul(set(kGeluScale), x), hn::MulAdd(set(kGeluCubic), square, set(1.0f)));
  const V32 two_u_slope = hn::Mul(set(kGeluScale), hn::MulAdd(set(3 * kGeluCubic), square, set(1.0f)));
  const Sigmoid s = sigmoid(two_u);
  return hn::MulAdd(hn::Mul(hn::Mul(x, two_u_slope), s.value), s.complement, s.value);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace foresail
HWY_AFTER_NAMESPACE();

#endif  // toggle
