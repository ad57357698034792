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

/// Sizes and strides of one attention operator: of whole sequences with q, k and v in packed rows, or of one ring step
/// with rows of q and rows of k and v, which hold two chunks of consecutive positions of every sequence.
struct AttentionShape {
  int64_t sequences, length, heads, kv_heads;
  int64_t head_dim, value_dim;  ///< widths of a query or key and of a value
  int64_t window;
  float scale;
  double probability;
  bool packed, heads_cut;
  int64_t chunks, chunk;  ///< runs of consecutive positions in the rows of a sequence, and rows of one
  int64_t whole_length;   ///< positions of a whole sequence
  int64_t tile;

  explicit AttentionShape(const OpInstance& op)
      : sequences(rows_of(op.inputs[0]) / op.attributes.sequence_length),
        length(op.attributes.sequence_length),
        heads(op.attributes.heads),
        kv_heads(op.attributes.kv_heads),
        head_dim(op.attributes.head_dim),
        value_dim(op.attributes.value_width()),
        window(op.attributes.window),
        scale(static_cast<float>(op.attributes.scale)),
        probability(op.attributes.probability),
        packed(op.kind != OpKind::ring_attention && op.kind != OpKind::ring_attention_backward),
        heads_cut(op.attributes.heads_cut),
        chunks(op.attributes.context_parallel > 1 ? 2 : 1),
        chunk(length / chunks),
        whole_length(length * op.attributes.context_parallel),
        tile(std::min(kLargestTile, round_up(chunk, kTileAlign))) {}

  int64_t q_columns() const { return heads * head_dim; }
  int64_t kv_columns() const { return kv_heads * (head_dim + value_dim); }
  int64_t q_row() const { return q_columns() + (packed ? kv_columns() : 0); }
  int64_t kv_row() const { return (packed ? q_columns() : 0) + kv_columns(); }
  int64_t o_row() const { return heads * value_dim; }
  int64_t group() const { return heads / kv_heads; }
  int64_t padded_dim() const { return round_up(head_dim, kTileAlign); }
  int64_t padded_value() const { return round_up(value_dim, kTileAlign); }
  int64_t padded_chunk() const { return round_up(chunk, tile); }
  int64_t padded_length() const { return chunks * padded_chunk(); }

  // Offsets of row 0 of a sequence's head.
  int64_t q(int64_t sequence, int64_t head) const { return sequence * length * q_row() + head * head_dim; }
  int64_t k(int64_t sequence, int64_t kv_head) const { return keys(sequence) + kv_head * head_dim; }
  int64_t v(int64_t sequence, int64_t kv_head) const {
    return keys(sequence) + kv_heads * head_dim + kv_head * value_dim;
  }
  int64_t o(int64_t sequence, int64_t head) const { return sequence * length * o_row() + head * value_dim; }
  int64_t lse(int64_t sequence, int64_t head) const { return (sequence * heads + head) * length; }

 private:
  int64_t keys(int64_t sequence) const { return sequence * length * kv_row() + (packed ? q_columns() : 0); }
};

/// Positions at which the chunks of the queries and of the keys begin. Chunks are as long as each other and do not
/// overlap: of two, one is wholly before the other or they are the same.
struct ChunkPositions {
  int64_t query[2] = {0, 0}, key[2] = {0, 0};

  ChunkPositions(const OpAttributes& attributes, const KernelContext& context);

  bool sees(const AttentionShape& shape, int64_t query_chunk, int64_t key_chunk) const {
    const int64_t oldest = shape.window > 0 ? query[query_chunk] - shape.window + 1 : 0;
    return key[key_chunk] <= query[query_chunk] && key[key_chunk] + shape.chunk > oldest;
  }
  /// Some query of the chunk sees some key.
  bool query_chunk_sees(const AttentionShape& shape, int64_t query_chunk) const {
    return sees(shape, query_chunk, 0) || (shape.chunks > 1 && sees(shape, query_chunk, 1));
  }
  bool key_chunk_is_seen(const AttentionShape& shape, int64_t key_chunk) const {
    return sees(shape, 0, key_chunk) || (shape.chunks > 1 && sees(shape, 1, key_chunk));
  }
};

/// A tile of queries: rows [row, row + queries) of a sequence's head, at positions from `position` on.
struct QueryTile {
  int64_t sequence, head;
  int64_t chunk, first;  ///< `first` counts in the chunk
  int64_t row, queries, position;
};

/// One tile of keys as one tile of queries meets it.
struct KeyTile {
  int64_t chunk, first;  ///< of the keys; `first` counts in the chunk
  int64_t keys;
  int64_t position;  ///< of key `first` in the whole sequence
  bool diagonal;     ///< queries and keys are the same positions
};

/// Calls body(KeyTile) for the tiles of keys that queries from row `first` of their chunk on see, in order of position.
template <typename Body>
void for_each_key_tile(const AttentionShape& s, const ChunkPositions& positions, int64_t query_chunk, int64_t first,
                       const Body& body) {
  const int64_t query = positions.query[query_chunk] + first;
  for (int64_t chunk = 0; chunk < s.chunks; ++chunk) {
    if (!positions.sees(s, query_chunk, chunk)) continue;
    const int64_t begin = positions.key[chunk];
    const bool same = begin == positions.query[query_chunk];
    const int64_t oldest = s.window > 0 ? std::max<int64_t>(0, query - s.window + 1 - begin) : 0;
    for (int64_t key = oldest / s.tile * s.tile; key < (same ? first + 1 : s.chunk); key += s.tile) {
      body(KeyTile{chunk, key, std::min(s.tile, s.chunk - key), begin + key, same && key == first});
    }
  }
}

/// Keys of a tile that one query sees: [begin, end) counted from the tile's first key, 0 <= begin <= end <= keys.
struct KeyRange {
  int64_t begin, end;
};

inline KeyRange visible_keys(const AttentionShape& shape, int64_t query, int64_t first_key, int64_t keys) {
  const int64_t oldest = shape.window > 0 ? query - shape.window + 1 - first_key : 0;
  const int64_t begin = std::clamp<int64_t>(oldest, 0, keys);
  return {begin, std::clamp(query - first_key + 1, begin, keys)};
}

/// Throws bad_input unless the attributes of attention over whole sequences make sense.
void check_attention(const OpInstance& op);
/// The same for a ring step, and unless a step other than the first has `first_step_inputs` + 2 inputs.
void check_ring_attention(const OpInstance& op, size_t first_step_inputs);

}  // namespace foresail
