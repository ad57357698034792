// Element-wise reduction of several ranks' buffers in the order of their ranks. All reductions of the MPI engine end
// here, so a result depends on the values alone: not on buffer sizes, algorithms, hosts or timing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace foresail {

/// result[i] = ((sources[0][i] + sources[1][i]) + sources[2][i]) + ..., or the maximum (NaN if any is NaN). `result`
/// may be one of the sources. 16-bit elements are added in f32; the sum is rounded once.
void reduce_in_rank_order(std::span<const std::byte* const> sources, std::byte* result, int64_t count, DType dtype,
                          ReduceKind kind);

}  // namespace foresail
