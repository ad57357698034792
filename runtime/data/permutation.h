// An exact random permutation of [0, n) with random access and no table: a Feistel network over the next even power of
// two, walked along its cycles until it lands below n (Black & Rogaway, "Ciphers with arbitrary finite domains",
// CT-RSA 2002). Position -> element is a pure function of (n, seed, epoch), so resuming needs one integer.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "core/philox.h"

namespace foresail {

class Permutation {
 public:
  /// `count` >= 1.
  constexpr Permutation(int64_t count, uint64_t seed, uint64_t epoch) : count_(static_cast<uint64_t>(count)) {
    const int bits = std::bit_width(count_ - 1);
    half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
    mask_ = (uint64_t{1} << half_bits_) - 1;
    // Round keys of the network: one Philox block per pair of rounds, in a stream of their own.
    for (uint32_t pair = 0; pair < kRounds / 2; ++pair) {
      const auto words = philox4x32({pair, kStream, static_cast<uint32_t>(epoch), static_cast<uint32_t>(epoch >> 32)},
                                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
      keys_[2 * pair] = uint64_t{words[1]} << 32 | words[0];
      keys_[2 * pair + 1] = uint64_t{words[3]} << 32 | words[2];
    }
  }

  /// Element at `position`, both in [0, count). The domain is at most four times `count`, so few steps are walked.
  constexpr int64_t operator()(int64_t position) const {
    uint64_t value = static_cast<uint64_t>(position);
    do {
      value = encrypt(value);
    } while (value >= count_);
    return static_cast<int64_t>(value);
  }

 private:
  static constexpr uint32_t kRounds = 8;
  static constexpr uint32_t kStream = 0x73687566;  // keeps these keys apart from other uses of the seed

  // Finaliser of MurmurHash3: every input bit reaches every output bit.
  static constexpr uint64_t mix(uint64_t x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccd;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53;
    return x ^ (x >> 33);
  }

  constexpr uint64_t encrypt(uint64_t value) const {
    uint64_t left = value >> half_bits_, right = value & mask_;
    for (const uint64_t key : keys_) {
      const uint64_t next = left ^ (mix(right + key) & mask_);
      left = right;
      right = next;
    }
    return left << half_bits_ | right;
  }

  uint64_t count_ = 1, mask_ = 1;
  int half_bits_ = 1;
  std::array<uint64_t, kRounds> keys_{};
};

}  // namespace foresail
