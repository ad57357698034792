// Dropout factors for consecutive positions: Philox4x32-10 (core/philox.h) over whole vectors of blocks.
#if defined(FORESAIL_KERNELS_CPU_DROPOUT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FORESAIL_KERNELS_CPU_DROPOUT_INL_H_
#undef FORESAIL_KERNELS_CPU_DROPOUT_INL_H_
#else
#define FORESAIL_KERNELS_CPU_DROPOUT_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/dropout_mask.h"

HWY_BEFORE_NAMESPACE();
namespace foresail {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_SCALAR

HWY_INLINE void dropout_factors(const DropoutMask& mask, uint64_t position, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(mask.factor(position + static_cast<uint64_t>(i)));
}

#else

using U32 = hn::RebindToUnsigned<F32>;
using VU32 = hn::Vec<U32>;

struct WideProduct {
  VU32 high, low;
};

HWY_INLINE WideProduct multiply_wide(VU32 a, VU32 b) {
  const hn::RepartitionToWide<U32> wide;
  const U32 narrow;
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(narrow, hn::ShiftRight<32>(hn::BitCast(wide, a))),
                               hn::BitCast(narrow, hn::ShiftRight<32>(hn::BitCast(wide, b))));
  const VU32 high = hn::OddEven(hn::BitCast(narrow, odd), hn::BitCast(narrow, hn::ShiftRight<32>(even)));
  return {high, hn::Mul(a, b)};
}

/// Factors of the 4 kLanes positions of blocks [block, block + kLanes).
HWY_INLINE void dropout_factor_blocks(const DropoutMask& mask, uint64_t block, float* out) {
  const U32 d;
  const VU32 low = hn::Set(d, static_cast<uint32_t>(block));
  VU32 c0 = hn::Add(low, hn::Iota(d, 0));
  const VU32 carry = hn::VecFromMask(d, hn::Lt(c0, low));  // all ones, that is -1, where the low word wrapped
  VU32 c1 = hn::Sub(hn::Set(d, static_cast<uint32_t>(block >> 32)), carry);
  VU32 c2 = hn::Set(d, static_cast<uint32_t>(mask.stream)), c3 = hn::Set(d, static_cast<uint32_t>(mask.stream >> 32));
  uint32_t key0 = static_cast<uint32_t>(mask.seed), key1 = static_cast<uint32_t>(mask.seed >> 32);
  const VU32 multiplier0 = hn::Set(d, 0xD2511F53u), multiplier1 = hn::Set(d, 0xCD9E8D57u);
  for (int round = 0; round < 10; ++round) {
    const WideProduct p0 = multiply_wide(c0, multiplier0), p1 = multiply_wide(c2, multiplier1);
    c0 = hn::Xor(hn::Xor(p1.high, c1), hn::Set(d, key0));
    c2 = hn::Xor(hn::Xor(p0.high, c3), hn::Set(d, key1));
    c1 = p1.low;
    c3 = p0.low;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const F32 df;
  const VU32 threshold = hn::Set(d, static_cast<uint32_t>(mask.threshold));
  const V32 scale = set(static_cast<float>(mask.scale));
  const auto factor = [&](VU32 bits) { return hn::IfThenZeroElse(hn::RebindMask(df, hn::Lt(bits, threshold)), scale); };
  hn::StoreInterleaved4(factor(c0), factor(c1), factor(c2), factor(c3), df, out);
}

/// out[i] = factor of position + i.
HWY_INLINE void dropout_factors(const DropoutMask& mask, uint64_t position, int64_t count, float* out) {
  constexpr int64_t kBatch = 4 * kLanes;
  uint64_t block = position / 4;
  int64_t skip = static_cast<int64_t>(position % 4);
  HWY_ALIGN float batch[kBatch];
  for (int64_t done = 0; done < count; block += kLanes) {
    if (skip == 0 && count - done >= kBatch) {
      dropout_factor_blocks(mask, block, out + done);
      done += kBatch;
      continue;
    }
    dropout_factor_blocks(mask, block, batch);
    const int64_t taken = std::min(kBatch - skip, count - done);
    std::memcpy(out + done, batch + skip, static_cast<size_t>(taken) * sizeof(float));
    done += taken;
    skip = 0;
  }
}

#endif  // HWY_SCALAR

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace foresail
HWY_AFTER_NAMESPACE();

#endif  // toggle
