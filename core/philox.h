// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011). A number depends only on (seed, stream, position), so every parallel plan draws the same ones.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace foresail {

/// Ten rounds of Philox over a 128-bit counter with a 64-bit key.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{kMultiplier0} * counter[0];
    const uint64_t product1 = uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

/// One draw of 32 bits for element `position` of `stream` under `seed`. Lane position % 4 of the block position / 4.
constexpr uint32_t random_bits(uint64_t seed, uint64_t stream, uint64_t position) {
  const uint64_t block = position / 4;
  const auto lanes = philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                 static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)},
                                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return lanes[position % 4];
}

/// Uniform in (0, 1): never 0 and never 1.
constexpr double uniform_from_bits(uint32_t bits) { return (bits + 0.5) * 0x1p-32; }

/// Standard normal for `position` (Box-Muller over two draws of the same stream).
inline double random_normal(uint64_t seed, uint64_t stream, uint64_t position) {
  const double radius = std::sqrt(-2.0 * std::log(uniform_from_bits(random_bits(seed, stream, 2 * position))));
  const double angle = 6.283185307179586 * uniform_from_bits(random_bits(seed, stream, 2 * position + 1));
  return radius * std::cos(angle);
}

}  // namespace foresail
