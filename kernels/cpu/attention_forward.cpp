// Causal attention forward in tiles, without storing scores (FlashAttention-2, Dao 2023, algorithm 1), and the ring step,
// which goes on from the o and log-sum-exp of the steps before (Liu, Zaharia & Abbeel 2023). One thread takes whole
// (sequence, query head) pairs; keys and values are packed once per KV head.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_forward.cpp"
#include "hwy/foreach_target.h"  // must precede highway.h

#include <cmath>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/dropout-inl.h"
#include "kernels/cpu/operand_check.h"
#include "kernels/cpu/tile_product-inl.h"
#include "kernels/row_map.h"

#ifndef FORESAIL_KERNELS_CPU_ATTENTION_FORWARD_ARGUMENTS
#define FORESAIL_KERNELS_CPU_ATTENTION_FORWARD_ARGUMENTS
namespace foresail {
namespace {

struct AttentionForward {
  const float *q, *kv;                 ///< the same rows if packed
  const float *o_before, *lse_before;  ///< of the ring steps before; null if there is none
  float *o, *lse;
  KernelContext context;
  DropoutMask mask;
  ChunkPositions positions;
};

/// One thread's buffers in the workspace.
struct ForwardScratch {
  float* keys;           ///< transposed, [S / tile][D][tile]; every chunk begins a tile
  float* values;         ///< [S][padded W]
  float* query;          ///< scaled tile [tile][padded D]
  float* scores;         ///< tile [tile][tile]
  float* result;         ///< tile [tile][padded W]
  float *largest, *sum;  ///< [tile]: running maximum and sum of exponentials

  static int64_t floats(const AttentionShape& s) {
    return round_up(s.head_dim * s.padded_length() + s.padded_length() * s.padded_value() + s.tile * s.padded_dim() +
                        s.tile * s.tile + s.tile * s.padded_value() + 2 * s.tile,
                    kTileAlign);
  }

  ForwardScratch(const AttentionShape& s, float* at) {
    const auto take = [&at](int64_t count) {
      float* taken = at;
      at += count;
      return taken;
    };
    keys = take(s.head_dim * s.padded_length());
    values = take(s.padded_length() * s.padded_value());
    query = take(s.tile * s.padded_dim());
    scores = take(s.tile * s.tile);
    result = take(s.tile * s.padded_value());
    largest = take(s.tile);
    sum = take(s.tile);
  }
};

}  // namespace
}  // namespace foresail
#endif

HWY_BEFORE_NAMESPACE();
namespace foresail {
namespace HWY_NAMESPACE {
namespace {

void pack_keys_and_values(const AttentionForward& a, const AttentionShape& s, int64_t sequence, int64_t kv_head,
                          const ForwardScratch& scratch) {
  for (int64_t chunk = 0; chunk < s.chunks; ++chunk) {
    if (!a.positions.key_chunk_is_seen(s, chunk)) continue;
    const int64_t row = s.kv_row(), packed = chunk * s.padded_chunk();
    const float* k = a.kv + s.k(sequence, kv_head) + chunk * s.chunk * row;
    const float* v = a.kv + s.v(sequence, kv_head) + chunk * s.chunk * row;
    for (int64_t first = 0; first < s.chunk; first += s.tile) {
      const int64_t keys = std::min(s.tile, s.chunk - first);
      transpose_tile(k + first * row, row, keys, s.head_dim, scratch.keys + (packed + first) * s.head_dim, s.tile,
                     s.tile);
    }
    copy_tile(v, row, s.chunk, s.value_dim, 1.0f, scratch.values + packed * s.padded_value(), s.padded_value());
  }
}

HWY_INLINE void scale_row(float* row, float factor, int64_t count) {
  const V32 scale = set(factor);
  each_vector(count, [=](auto part, int64_t i) { part.store(hn::Mul(part.load(row + i), scale), row + i); });
}

/// Takes the rows' maxima over one more tile into the running maxima. What was summed before is rescaled to them: the
/// sums here, the results in rescale_results by `shrink`.
HWY_INLINE void raise_maxima(const ForwardScratch& scratch, int64_t tile, const float* tile_largest, float* shrink) {
  for (int64_t i = 0; i < tile; i += kLanes) {
    const V32 before = Whole::load(scratch.largest + i);
    const V32 after = hn::Max(before, Whole::load(tile_largest + i));
    const V32 factor = hn::IfThenElse(hn::Eq(before, after), set(1.0f), exp_of(hn::Sub(before, after)));
    Whole::store(factor, shrink + i);
    Whole::store(after, scratch.largest + i);
    Whole::store(hn::Mul(Whole::load(scratch.sum + i), factor), scratch.sum + i);
  }
}

/// Turns a tile of scores into exponentials relative to the running maxima; entries that a query does not see become 0.
HWY_INLINE void softmax_tile(const AttentionShape& s, const ForwardScratch& scratch, const QueryTile& tile,
                             const KeyTile& key) {
  HWY_ALIGN float tile_largest[kLargestTile];
  HWY_ALIGN float shrink[kLargestTile];
  std::fill_n(tile_largest, s.tile, -std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < tile.queries; ++i) {
    const KeyRange seen = visible_keys(s, tile.position + i, key.position, key.keys);
    if (seen.begin < seen.end)
      tile_largest[i] = max_of(scratch.scores + i * s.tile + seen.begin, seen.end - seen.begin);
  }
  raise_maxima(scratch, s.tile, tile_largest, shrink);
  for (int64_t i = 0; i < tile.queries; ++i) {
    const KeyRange seen = visible_keys(s, tile.position + i, key.position, key.keys);
    float* scores = scratch.scores + i * s.tile;
    if (shrink[i] != 1.0f) scale_row(scratch.result + i * s.padded_value(), shrink[i], s.padded_value());
    std::fill(scores, scores + seen.begin, 0.0f);
    std::fill(scores + seen.end, scores + s.tile, 0.0f);
    const V32 offset = set(scratch.largest[i]);
    float* from = scores + seen.begin;
    scratch.sum[i] += sum_vectors(seen.end - seen.begin, [=](auto part, int64_t j) {
      const V32 e = part.keep(exp_of(hn::Sub(part.load(from + j), offset)), zero());
      part.store(e, from + j);
      return e;
    });
  }
}

/// Multiplies the exponentials of one row by their dropout factors (their sum stays that of all).
void drop_scores(const AttentionForward& a, const AttentionShape& s, float* scores, const QueryTile& tile,
                 int64_t query, int64_t first_key) {
  HWY_ALIGN float factors[kLargestTile];
  const uint64_t position =
      dropout_score_position(a.context, s.heads_cut, tile.sequence, tile.head, s.heads, query, s.whole_length);
  dropout_factors(a.mask, position + static_cast<uint64_t>(first_key), s.tile, factors);
  for (int64_t j = 0; j < s.tile; j += kLanes) {
    Whole::store(hn::Mul(Whole::load(scores + j), Whole::load(factors + j)), scores + j);
  }
}

/// Begins with what the steps before found: their o is a result whose maximum is their log-sum-exp and whose sum is 1. A
/// log-sum-exp of minus infinity says that they found nothing; o means nothing then.
void begin_tile(const AttentionForward& a, const AttentionShape& s, const ForwardScratch& scratch,
                const QueryTile& tile) {
  const int64_t width = s.padded_value();
  std::fill_n(scratch.largest, s.tile, -std::numeric_limits<float>::infinity());
  std::fill_n(scratch.sum, s.tile, 0.0f);
  if (a.o_before == nullptr) {
    std::fill_n(scratch.result, tile.queries * width, 0.0f);
    return;
  }
  copy_tile(a.o_before + s.o(tile.sequence, tile.head) + tile.row * s.o_row(), s.o_row(), tile.queries, s.value_dim,
            1.0f, scratch.result, width);
  const float* lse = a.lse_before + s.lse(tile.sequence, tile.head) + tile.row;
  for (int64_t i = 0; i < tile.queries; ++i) {
    const bool nothing = lse[i] == -std::numeric_limits<float>::infinity();
    scratch.largest[i] = lse[i];
    scratch.sum[i] = nothing ? 0.0f : 1.0f;
    if (nothing) std::fill_n(scratch.result + i * width, width, 0.0f);
  }
}

/// o = result / sum; lse = largest + log sum. A ring step may leave rows that have seen nothing: 0 and minus infinity.
void store_tile(const AttentionForward& a, const AttentionShape& s, const ForwardScratch& scratch,
                const QueryTile& tile) {
  for (int64_t i = 0; i < tile.queries; ++i) {
    const float* result = scratch.result + i * s.padded_value();
    float* o = a.o + s.o(tile.sequence, tile.head) + (tile.row + i) * s.o_row();
    const V32 inverse = set(scratch.sum[i] == 0 ? 0.0f : 1.0f / scratch.sum[i]);
    each_vector(s.value_dim, [=](auto part, int64_t c) { part.store(hn::Mul(part.load(result + c), inverse), o + c); });
  }
  float* lse = a.lse + s.lse(tile.sequence, tile.head) + tile.row;
  each_vector(tile.queries, [=](auto part, int64_t i) {
    const V32 log_sum = log_of(part.keep(part.load(scratch.sum + i), set(1.0f)));
    part.store(hn::Add(part.load(scratch.largest + i), log_sum), lse + i);
  });
}

/// One tile of queries of one head against all keys that it sees.
void attend_tile(const AttentionForward& a, const AttentionShape& s, const ForwardScratch& scratch,
                 const QueryTile& tile) {
  const int64_t width = s.padded_dim(), values = s.padded_value();
  copy_tile(a.q + s.q(tile.sequence, tile.head) + tile.row * s.q_row(), s.q_row(), tile.queries, s.head_dim, s.scale,
            scratch.query, width);
  begin_tile(a, s, scratch, tile);
  for_each_key_tile(s, a.positions, tile.chunk, tile.first, [&](const KeyTile& key) {
    const int64_t packed = key.chunk * s.padded_chunk() + key.first;
    tile_product(tile.queries, s.tile, s.head_dim, {scratch.query, width, 1},
                 {scratch.keys + packed * s.head_dim, s.tile}, {scratch.scores, s.tile, false},
                 key.diagonal ? Triangle::columns : Triangle::none);
    softmax_tile(s, scratch, tile, key);
    for (int64_t i = 0; s.probability > 0 && i < tile.queries; ++i) {
      drop_scores(a, s, scratch.scores + i * s.tile, tile, tile.position + i, key.position);
    }
    tile_product(tile.queries, values, key.keys, {scratch.scores, s.tile, 1},
                 {scratch.values + packed * values, values}, {scratch.result, values, true},
                 key.diagonal ? Triangle::depth_end : Triangle::none);
  });
  store_tile(a, s, scratch, tile);
}

/// A chunk of queries that no key of this step reaches keeps what the steps before found.
void keep_chunk(const AttentionForward& a, const AttentionShape& s, int64_t sequence, int64_t head, int64_t chunk) {
  const int64_t row = chunk * s.chunk, o = s.o(sequence, head) + row * s.o_row(), lse = s.lse(sequence, head) + row;
  if (a.o != a.o_before) {
    for (int64_t i = 0; i < s.chunk; ++i) {
      std::copy_n(a.o_before + o + i * s.o_row(), s.value_dim, a.o + o + i * s.o_row());
    }
  }
  if (a.lse != a.lse_before) std::copy_n(a.lse_before + lse, s.chunk, a.lse + lse);
}

/// Items [begin, end) of all (sequence, query head) pairs.
void attend_heads(const AttentionForward& a, const AttentionShape& s, float* workspace, int64_t begin, int64_t end) {
  const ForwardScratch scratch(s, workspace);
  int64_t packed = -1;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t sequence = item / s.heads, head = item % s.heads, kv_head = head / s.group();
    if (packed != sequence * s.kv_heads + kv_head) {
      packed = sequence * s.kv_heads + kv_head;
      pack_keys_and_values(a, s, sequence, kv_head, scratch);
    }
    for (int64_t chunk = 0; chunk < s.chunks; ++chunk) {
      if (a.o_before != nullptr && !a.positions.query_chunk_sees(s, chunk)) {
        keep_chunk(a, s, sequence, head, chunk);
        continue;
      }
      for (int64_t first = 0; first < s.chunk; first += s.tile) {
        attend_tile(a, s, scratch,
                    {sequence, head, chunk, first, chunk * s.chunk + first, std::min(s.tile, s.chunk - first),
                     a.positions.query[chunk] + first});
      }
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace foresail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foresail {
namespace {

HWY_EXPORT(attend_heads);

int64_t attention_workspace(const OpInstance& op, int threads) {
  return threads * ForwardScratch::floats(AttentionShape(op)) * static_cast<int64_t>(sizeof(float));
}

void attend(const OpInstance& op, const KernelArguments& a, const AttentionForward& forward) {
  const AttentionShape shape(op);
  const int64_t scratch = ForwardScratch::floats(shape);
  parallel_ranges(shape.sequences * shape.heads, 1, [&](int64_t begin, int64_t end, int thread) {
    HWY_DYNAMIC_DISPATCH(attend_heads)
    (forward, shape, static_cast<float*>(a.workspace) + thread * scratch, begin, end);
  });
}

void run_attention(const OpInstance& op, const KernelArguments& a) {
  attend(op, a,
         {input(a, 0), input(a, 0), nullptr, nullptr, output(a, 0), output(a, 1), a.context,
          dropout_mask(op.attributes, a.context), ChunkPositions(op.attributes, a.context)});
}

void run_ring_attention(const OpInstance& op, const KernelArguments& a) {
  const bool first_step = op.inputs.size() == 2;
  attend(
      op, a,
      {input(a, 0), input(a, 1), first_step ? nullptr : input(a, 2), first_step ? nullptr : input(a, 3), output(a, 0),
       output(a, 1), a.context, dropout_mask(op.attributes, a.context), ChunkPositions(op.attributes, a.context)});
}

void check_heads_and_window(const OpInstance& op) {
  const OpAttributes& a = op.attributes;
  if (a.sequence_length < 1 || a.head_dim < 1)
    refuse_operator(op, "attributes sequence_length and head_dim must be positive");
  if (a.window < 0) refuse_operator(op, "the window is negative");
  if (!(a.probability >= 0 && a.probability < 1)) refuse_operator(op, "the dropout probability is not in [0, 1)");
}

void check_ring_forward(const OpInstance& op) { check_ring_attention(op, 2); }

}  // namespace

ChunkPositions::ChunkPositions(const OpAttributes& a, const KernelContext& context) {
  if (a.context_parallel == 1) return;
  const int64_t degree = a.context_parallel, rank = context.context_rank;
  ensure(rank < degree, "the context rank is one of the degree");
  const int64_t source = (rank - a.ring_step + degree) % degree;
  for (const int64_t chunk : {0, 1}) {
    const int64_t row = chunk * (a.sequence_length / 2);
    query[chunk] = zigzag_position(rank, degree, a.sequence_length, row);
    key[chunk] = zigzag_position(source, degree, a.sequence_length, row);
  }
}

void check_attention(const OpInstance& op) {
  check_heads_and_window(op);
  if (op.attributes.context_parallel != 1)
    refuse_operator(op, "it needs whole sequences; with cut ones use ring_attention or an all-to-all");
}

void check_ring_attention(const OpInstance& op, size_t first_step_inputs) {
  const OpAttributes& a = op.attributes;
  check_heads_and_window(op);
  check_row_map(op, rows_of(op.inputs[0]));
  if (a.rows_cut) refuse_operator(op, "the rows are cut over the tensor ranks");
  if (a.ring_step < 0 || a.ring_step >= a.context_parallel)
    refuse_operator(op, "the ring step is not below the degree");
  if (op.inputs.size() != first_step_inputs + (a.ring_step == 0 ? 0 : 2))
    refuse_operator(op, "the first step alone begins without the results of steps before");
}

std::span<const CpuOp> attention_ops() {
  static constexpr CpuOp kOps[] = {{.kind = OpKind::attention,
                                    .operands = "qkv[T,QKV] -> o[T,AW] lse[B,A,S]",
                                    .run = run_attention,
                                    .workspace = attention_workspace,
                                    .check = check_attention},
                                   {.kind = OpKind::ring_attention,
                                    .operands = "q[T,AD] kv[T,KV] o?[T,AW] lse?[B,A,S] -> o[T,AW] lse[B,A,S]",
                                    .run = run_ring_attention,
                                    .workspace = attention_workspace,
                                    .check = check_ring_forward}};
  return kOps;
}

}  // namespace foresail
#endif  // HWY_ONCE
