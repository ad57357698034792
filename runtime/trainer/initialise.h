// The parameters at step 0. An element depends only on the job's seed, its tensor's name and its place in the logical
// tensor, so every plan starts from the same model, whatever it shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/dtype.h"
#include "program/compile.h"

namespace foresail {

/// Value of element (row, column) of a logical tensor whose rows have `columns` elements: `init.standard_deviation` times
/// random_normal(seed, stream of the tensor's name, row * columns + column) (core/philox.h), or 0 or 1.
double initial_value(const Init& init, uint64_t seed, uint64_t stream, int64_t row, int64_t columns, int64_t column);
/// The random stream of a tensor: a digest of its name.
uint64_t stream_of(std::string_view tensor);

/// Fills what this rank holds of the parameters (and of the master copy, if the precision has one) from the slices' Init
/// and zeroes padding, gradients and both moments. No rank needs another for it. `arena` is the arena's first byte. Throws
/// bad_input for parameters that are neither f32 nor f64.
void initialise(const Program& program, const RankSlices& slices, uint64_t seed, std::byte* arena);

}  // namespace foresail
