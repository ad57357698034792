#include "planner/simulator/gemm_model.h"

#include <algorithm>
#include <array>
#include <limits>

#include "core/error.h"
#include "core/round_up.h"

namespace foresail {
namespace {

/// Tile of the output that one multiprocessor computes, and the fraction of the rate that its data reuse allows.
struct Tile {
  int64_t m, n;
  double rate;
};
constexpr std::array<Tile, 6> kTiles = {
    {{256, 128, 1}, {128, 256, 1}, {128, 128, 0.95}, {128, 64, 0.8}, {64, 128, 0.8}, {64, 64, 0.6}}};
constexpr std::array<int64_t, 4> kSplits = {1, 2, 4, 8};
constexpr int64_t kLeastSplitK = 512;       // a split shorter than this is not worth its reduction
constexpr int64_t kMostWavesWhenSplit = 4;  // more tiles than this fill the device without splitting
constexpr double kUnalignedRate = 0.3;
constexpr int64_t kAlignment = 8;
constexpr double kPartialSumBytes = 8;  // one fp32 partial sum written and read again

}  // namespace

double gemm_seconds(const GemmWork& shape, const GemmDevice& device) {
  ensure(shape.m > 0 && shape.n > 0 && shape.k > 0 && shape.batch > 0, "a matrix product has no empty dimension");
  const double aligned = shape.k % kAlignment == 0 && shape.n % kAlignment == 0 ? 1 : kUnalignedRate;
  const double rate = device.peak_flops_per_second * device.matrix_efficiency * aligned;
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    const int64_t tiles = divide_up(shape.m, tile.m) * divide_up(shape.n, tile.n) * shape.batch;
    for (const int64_t split : kSplits) {
      if (split > 1 &&
          (shape.k / split < kLeastSplitK || tiles * split > kMostWavesWhenSplit * device.multiprocessors)) {
        continue;
      }
      const double waves = static_cast<double>(divide_up(tiles * split, device.multiprocessors));
      const double depth = static_cast<double>(shape.k) / split + device.ramp_k;
      const double flops = waves * device.multiprocessors * 2.0 * tile.m * tile.n * depth;
      const double partial_sums = split == 1 ? 0 : kPartialSumBytes * split * shape.m * shape.n * shape.batch;
      best = std::min(best, flops / (rate * tile.rate) + partial_sums / device.memory_bytes_per_second);
    }
  }
  return std::max(best, shape.bytes / device.memory_bytes_per_second);
}

}  // namespace foresail
