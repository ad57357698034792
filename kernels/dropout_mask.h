// Which elements dropout keeps. A pure function of (seed, step, layer, site, global position), so that every back end
// and every parallel plan drops the same elements. All back ends must take the positions from here.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/philox.h"
#include "ops/op.h"
#include "ops/step_inputs.h"

namespace foresail {

/// The mask of one dropout site of one layer in one step.
struct DropoutMask {
  uint64_t seed = 0, stream = 0;
  uint64_t threshold = 0;  ///< an element is kept if its 32 random bits are at least this
  double scale = 1;        ///< of kept elements: 1 / (1 - probability)

  bool keeps(uint64_t position) const { return random_bits(seed, stream, position) >= threshold; }
  /// What element `position` is multiplied by.
  double factor(uint64_t position) const { return keeps(position) ? scale : 0.0; }
};

/// keeps(position) <=> uniform_from_bits(bits) >= probability <=> bits >= probability * 2^32 - 0.5.
/// The layer of embedding and head is -1 and has stream 0 of the step; layers follow.
inline DropoutMask dropout_mask(const OpAttributes& attributes, const KernelContext& context) {
  DropoutMask mask;
  mask.seed = context.step->seed;
  mask.stream = (static_cast<uint64_t>(context.step->step) << 32) + static_cast<uint64_t>(context.layer + 1) * 16 +
                static_cast<uint64_t>(attributes.random_site);
  mask.threshold = static_cast<uint64_t>(std::ceil(std::fmax(0.0, attributes.probability * 0x1p32 - 0.5)));
  mask.scale = 1.0 / (1.0 - attributes.probability);
  return mask;
}

/// Position of column 0 of row `global_row` (RowMap) of a tensor [T, columns] whose columns are not sharded; column c
/// follows at + c.
inline uint64_t dropout_row_position(int64_t global_row, int64_t columns) {
  return static_cast<uint64_t>(global_row) * static_cast<uint64_t>(columns);
}

/// Position of key 0 of one query of one local head in a tensor of scores [B, heads, L, L] over whole sequences of
/// `length`; key j follows at + j. `query` counts in the whole sequence, `sequence` in the micro-batch. Tensor
/// parallelism cuts the heads first; with `heads_cut` the context ranks share those of a tensor rank.
inline uint64_t dropout_score_position(const KernelContext& context, bool heads_cut, int64_t sequence, int64_t head,
                                       int64_t heads, int64_t query, int64_t length) {
  const int64_t shares = heads_cut ? context.context_size : 1, share = heads_cut ? context.context_rank : 0;
  const int64_t global_sequence = context.first_row / length + sequence;
  const int64_t global_head = (context.tensor_rank * shares + share) * heads + head;
  const int64_t all_heads = heads * shares * context.tensor_size;
  return ((static_cast<uint64_t>(global_sequence) * all_heads + global_head) * length + query) * length;
}

}  // namespace foresail
