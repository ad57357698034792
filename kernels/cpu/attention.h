// What attention forward and backward share: tiles, where heads lie, which keys a query sees.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/internal.h"
#include "kernels/dropout_mask.h"

namespace foresail {

/// Queries and keys are taken in square tiles, so that only tiles on the diagonal are cut by causality. Shorter sequences
/// have smaller tiles.
inline constexpr int64_t kLargestTile = 64;
/// Widths of packed operands are multiples of the longest vector (16 floats of AVX-512).
inline constexpr int64_t kTileAlign = 16;

/// Sizes and strides of one attention operator.
struct AttentionShape {
  int64_t sequences, length, heads, kv_heads, head_dim;
  int64_t window;
  float scale;
  double probability;
  int64_t tile;

  explicit AttentionShape(const OpInstance& op)
      : sequences(rows_of(op.inputs[0]) / op.attributes.sequence_length),
        length(op.attributes.sequence_length),
        heads(op.attributes.heads),
        kv_heads(op.attributes.kv_heads),
        head_dim(op.attributes.head_dim),
        window(op.attributes.window),
        scale(static_cast<float>(op.attributes.scale)),
        probability(op.attributes.probability),
        tile(std::min(kLargestTile, round_up(length, kTileAlign))) {}

  int64_t qkv_row() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t o_row() const { return heads * head_dim; }
  int64_t group() const { return heads / kv_heads; }
  int64_t padded_dim() const { return round_up(head_dim, kTileAlign); }
  int64_t padded_length() const { return round_up(length, tile); }

  // Offsets of position 0 of a sequence's head.
  int64_t q(int64_t sequence, int64_t head) const { return sequence * length * qkv_row() + head * head_dim; }
  int64_t k(int64_t sequence, int64_t kv_head) const { return q(sequence, heads + kv_head); }
  int64_t v(int64_t sequence, int64_t kv_head) const { return q(sequence, heads + kv_heads + kv_head); }
  int64_t o(int64_t sequence, int64_t head) const { return sequence * length * o_row() + head * head_dim; }
  int64_t lse(int64_t sequence, int64_t head) const { return (sequence * heads + head) * length; }

  /// First key tile that some query from `first_query` on sees.
  int64_t first_key_tile(int64_t first_query) const {
    return window > 0 ? std::max<int64_t>(0, first_query - window + 1) / tile * tile : 0;
  }
};

/// Keys of a tile that one query sees: [begin, end) counted from the tile's first key, 0 <= begin <= end <= keys.
struct KeyRange {
  int64_t begin, end;
};

inline KeyRange visible_keys(const AttentionShape& shape, int64_t query, int64_t first_key, int64_t keys) {
  const int64_t oldest = shape.window > 0 ? query - shape.window + 1 - first_key : 0;
  const int64_t begin = std::clamp<int64_t>(oldest, 0, keys);
  return {begin, std::clamp(query - first_key + 1, begin, keys)};
}

/// Throws bad_input unless the attributes of attention make sense.
void check_attention(const OpInstance& op);

}  // namespace foresail
