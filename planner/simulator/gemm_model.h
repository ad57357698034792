// Seconds of a matrix product on a GPU from its shape: tiles, waves over the multiprocessors, split-K, memory bound.
#pragma once

#include <cstdint>

namespace foresail {

/// Multiplies [m, k] by [k, n], `batch` times.
struct GemmWork {
  int64_t m = 1, n = 1, k = 1, batch = 1;
  double bytes = 0;  ///< that must cross memory at least once
};

struct GemmDevice {
  double peak_flops_per_second = 0;    ///< dense, of this dtype
  double matrix_efficiency = 1;        ///< fraction of peak that a large product reaches
  double memory_bytes_per_second = 0;  ///< reached, not the datasheet's
  int64_t multiprocessors = 1;
  double ramp_k = 150;  ///< k lost to filling and draining a tile's pipeline
};

/// Without launch. The best over tile shapes and split-K factors of ceil(tiles * split / SMs) waves; never faster than
/// the bytes allow. Not multiples of 8 in k or n run at 0.3 of the rate (tensor cores need aligned rows). The form and
/// the constants were fitted on published A100 and H100 runs; see docs/planning.md. Throws (ensure) on empty shapes.
double gemm_seconds(const GemmWork& shape, const GemmDevice& device);

}  // namespace foresail
