// Causal attention backward in tiles: probabilities are rebuilt from the log-sum-exp (FlashAttention-2, Dao 2023,
// algorithm 2). A ring step does the same for the keys that it meets and adds to the gradients of the steps before. One thread takes whole (sequence, KV head) pairs with all their query heads, so it alone writes their
// dq, dk and dv: nothing is shared and nothing is summed in an order that depends on timing.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_backward.cpp"
#include "hwy/foreach_target.h"  // must precede highway.h

#include "hwy/highway.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/dropout-inl.h"
#include "kernels/cpu/tile_product-inl.h"

#ifndef FORESAIL_KERNELS_CPU_ATTENTION_BACKWARD_ARGUMENTS
#define FORESAIL_KERNELS_CPU_ATTENTION_BACKWARD_ARGUMENTS
namespace foresail {
namespace {

struct AttentionBackward {
  const float *d_o, *q, *kv, *o, *lse;  ///< q and kv are the same rows if packed
  const float *dq_before, *dkv_before;  ///< sums of the ring steps before; null if there is none
  float *dq, *dkv;
  KernelContext context;
  DropoutMask mask;
  ChunkPositions positions;
};

/// One thread's buffers in the workspace. Every chunk begins a tile.
struct BackwardScratch {
  float *keys_transposed, *values_transposed;  ///< [S / tile][D][tile] and [S / tile][W][tile]
  float* keys;                                 ///< [S][padded D]
  float *dkeys, *dvalues;                      ///< [S][padded D] and [S][padded W], summed over the group's query heads
  float *query, *dquery;                       ///< tiles [tile][padded D]; the query is scaled
  float* d_o;                                  ///< tile [tile][padded W]
  float *p, *ds;                               ///< tiles [tile][tile]
  float* delta;                                ///< [tile]

  static int64_t floats(const AttentionShape& s) {
    const int64_t columns = s.head_dim + s.value_dim + 2 * s.padded_dim() + s.padded_value();
    return round_up(
        columns * s.padded_length() + s.tile * (2 * s.padded_dim() + s.padded_value()) + 2 * s.tile * s.tile + s.tile,
        kTileAlign);
  }

  BackwardScratch(const AttentionShape& s, float* at) {
    const auto take = [&at](int64_t count) {
      float* taken = at;
      at += count;
      return taken;
    };
    const int64_t rows = s.padded_length(), width = s.padded_dim(), value_width = s.padded_value();
    keys_transposed = take(s.head_dim * rows);
    values_transposed = take(s.value_dim * rows);
    keys = take(rows * width);
    dkeys = take(rows * width);
    dvalues = take(rows * value_width);
    query = take(s.tile * width);
    d_o = take(s.tile * value_width);
    dquery = take(s.tile * width);
    p = take(s.tile * s.tile);
    ds = take(s.tile * s.tile);
    delta = take(s.tile);
  }
};

}  // namespace
}  // namespace foresail
#endif

HWY_BEFORE_NAMESPACE();
namespace foresail {
namespace HWY_NAMESPACE {
namespace {

void pack_chunk(const AttentionShape& s, const float* k, const float* v, int64_t chunk,
                const BackwardScratch& scratch) {
  const int64_t row = s.kv_row(), packed = chunk * s.padded_chunk(), width = s.padded_dim();
  const int64_t value_width = s.padded_value();
  for (int64_t first = 0; first < s.chunk; first += s.tile) {
    const int64_t keys = std::min(s.tile, s.chunk - first), at = packed + first;
    transpose_tile(k + first * row, row, keys, s.head_dim, scratch.keys_transposed + at * s.head_dim, s.tile, s.tile);
    transpose_tile(v + first * row, row, keys, s.value_dim, scratch.values_transposed + at * s.value_dim, s.tile,
                   s.tile);
  }
  copy_tile(k, row, s.chunk, s.head_dim, 1.0f, scratch.keys + packed * width, width);
  std::fill_n(scratch.dkeys + packed * width, s.chunk * width, 0.0f);
  std::fill_n(scratch.dvalues + packed * value_width, s.chunk * value_width, 0.0f);
}

/// One row of a tile: p = exp(scores - lse), ds = p (dp - delta); entries that the query does not see become 0. With
/// dropout factors m: ds = p (m dp - delta), and p becomes m p, what dv needs.
void probability_row(float* p, float* ds, int64_t tile, KeyRange keys, float lse, float delta, const float* factors) {
  const int64_t begin = keys.begin, end = keys.end;
  std::fill(p, p + begin, 0.0f);
  std::fill(ds, ds + begin, 0.0f);
  std::fill(p + end, p + tile, 0.0f);
  std::fill(ds + end, ds + tile, 0.0f);
  const V32 offset = set(lse), mean = set(delta);
  each_vector(end - begin, [=](auto part, int64_t i) {
    const int64_t at = begin + i;
    const V32 probability = exp_of(hn::Sub(part.load(p + at), offset));
    V32 gradient = part.load(ds + at), kept = probability;
    if (factors != nullptr) {
      const V32 factor = part.load(factors + at);
      gradient = hn::Mul(gradient, factor);
      kept = hn::Mul(kept, factor);
    }
    part.store(kept, p + at);
    part.store(hn::Mul(probability, hn::Sub(gradient, mean)), ds + at);
  });
}

void probability_tile(const AttentionBackward& a, const AttentionShape& s, const BackwardScratch& scratch,
                      const QueryTile& tile, const KeyTile& key) {
  HWY_ALIGN float factors[kLargestTile];
  const float* lse = a.lse + s.lse(tile.sequence, tile.head) + tile.row;
  for (int64_t i = 0; i < tile.queries; ++i) {
    const float* used = nullptr;
    if (s.probability > 0) {
      const uint64_t position = dropout_score_position(a.context, s.heads_cut, tile.sequence, tile.head, s.heads,
                                                       tile.position + i, s.whole_length);
      dropout_factors(a.mask, position + static_cast<uint64_t>(key.position), s.tile, factors);
      used = factors;
    }
    probability_row(scratch.p + i * s.tile, scratch.ds + i * s.tile, s.tile,
                    visible_keys(s, tile.position + i, key.position, key.keys), lse[i], scratch.delta[i], used);
  }
}

/// The gradients that one tile of queries gives to one tile of keys, and receives from it.
void backward_tile_pair(const AttentionBackward& a, const AttentionShape& s, const BackwardScratch& scratch,
                        const QueryTile& tile, const KeyTile& key) {
  const int64_t queries = tile.queries, keys = key.keys, width = s.padded_dim(), value_width = s.padded_value();
  const int64_t packed = key.chunk * s.padded_chunk() + key.first;
  const Triangle result = key.diagonal ? Triangle::columns : Triangle::none;
  const Triangle by_query = key.diagonal ? Triangle::depth_end : Triangle::none;
  const Triangle by_key = key.diagonal ? Triangle::depth_begin : Triangle::none;
  tile_product(queries, s.tile, s.head_dim, {scratch.query, width, 1},
               {scratch.keys_transposed + packed * s.head_dim, s.tile}, {scratch.p, s.tile, false}, result);
  tile_product(queries, s.tile, s.value_dim, {scratch.d_o, value_width, 1},
               {scratch.values_transposed + packed * s.value_dim, s.tile}, {scratch.ds, s.tile, false}, result);
  probability_tile(a, s, scratch, tile, key);
  tile_product(keys, value_width, queries, {scratch.p, 1, s.tile}, {scratch.d_o, value_width},
               {scratch.dvalues + packed * value_width, value_width, true}, by_key);
  tile_product(keys, width, queries, {scratch.ds, 1, s.tile}, {scratch.query, width},
               {scratch.dkeys + packed * width, width, true}, by_key);
  tile_product(queries, width, keys, {scratch.ds, s.tile, 1}, {scratch.keys + packed * width, width},
               {scratch.dquery, width, true}, by_query);
}

/// delta_i = do_i . o_i, which equals the sum over j of p_ij dp_ij.
void sum_deltas(const AttentionBackward& a, const AttentionShape& s, const BackwardScratch& scratch, int64_t at,
                int64_t queries) {
  for (int64_t i = 0; i < queries; ++i) {
    const float *d_o = a.d_o + at + i * s.o_row(), *o = a.o + at + i * s.o_row();
    scratch.delta[i] =
        sum_vectors(s.value_dim, [=](auto part, int64_t c) { return hn::Mul(part.load(d_o + c), part.load(o + c)); });
  }
}

/// Where a gradient goes: rows that are `row` apart, and what they held after the steps before (null: nothing).
struct GradientRows {
  float* to;
  const float* before;
  int64_t row;
};

GradientRows rows_at(float* to, const float* before, int64_t at, int64_t row) {
  return {to + at, before == nullptr ? nullptr : before + at, row};
}

/// to = before + factor x from.
void store_rows(const float* from, int64_t from_row, int64_t rows, int64_t columns, float factor,
                const GradientRows& gradient) {
  const V32 scale = set(factor);
  for (int64_t row = 0; row < rows; ++row) {
    const float* source = from + row * from_row;
    float* target = gradient.to + row * gradient.row;
    if (gradient.before == nullptr) {
      each_vector(columns,
                  [=](auto part, int64_t i) { part.store(hn::Mul(part.load(source + i), scale), target + i); });
      continue;
    }
    const float* before = gradient.before + row * gradient.row;
    each_vector(columns, [=](auto part, int64_t i) {
      part.store(hn::MulAdd(part.load(source + i), scale, part.load(before + i)), target + i);
    });
  }
}

/// Rows that nothing of this step reaches.
void keep_rows(int64_t rows, int64_t columns, const GradientRows& gradient) {
  if (gradient.to == gradient.before) return;
  for (int64_t row = 0; row < rows; ++row) {
    float* target = gradient.to + row * gradient.row;
    if (gradient.before == nullptr) {
      std::fill_n(target, columns, 0.0f);
    } else {
      std::copy_n(gradient.before + row * gradient.row, columns, target);
    }
  }
}

void backward_query_tile(const AttentionBackward& a, const AttentionShape& s, const BackwardScratch& scratch,
                         const QueryTile& tile) {
  const int64_t width = s.padded_dim(), q_at = s.q(tile.sequence, tile.head) + tile.row * s.q_row();
  const int64_t o_at = s.o(tile.sequence, tile.head) + tile.row * s.o_row();
  copy_tile(a.q + q_at, s.q_row(), tile.queries, s.head_dim, s.scale, scratch.query, width);
  copy_tile(a.d_o + o_at, s.o_row(), tile.queries, s.value_dim, 1.0f, scratch.d_o, s.padded_value());
  sum_deltas(a, s, scratch, o_at, tile.queries);
  std::fill_n(scratch.dquery, tile.queries * width, 0.0f);
  for_each_key_tile(s, a.positions, tile.chunk, tile.first,
                    [&](const KeyTile& key) { backward_tile_pair(a, s, scratch, tile, key); });
  store_rows(scratch.dquery, width, tile.queries, s.head_dim, s.scale, rows_at(a.dq, a.dq_before, q_at, s.q_row()));
}

void backward_query_head(const AttentionBackward& a, const AttentionShape& s, const BackwardScratch& scratch,
                         int64_t sequence, int64_t head) {
  for (int64_t chunk = 0; chunk < s.chunks; ++chunk) {
    const int64_t row = chunk * s.chunk;
    if (!a.positions.query_chunk_sees(s, chunk)) {
      keep_rows(s.chunk, s.head_dim, rows_at(a.dq, a.dq_before, s.q(sequence, head) + row * s.q_row(), s.q_row()));
      continue;
    }
    for (int64_t first = 0; first < s.chunk; first += s.tile) {
      backward_query_tile(a, s, scratch,
                          {sequence, head, chunk, first, row + first, std::min(s.tile, s.chunk - first),
                           a.positions.query[chunk] + first});
    }
  }
}

/// dk and dv of one chunk of keys.
void store_chunk(const AttentionBackward& a, const AttentionShape& s, const BackwardScratch& scratch, int64_t sequence,
                 int64_t kv_head, int64_t chunk) {
  const int64_t at = chunk * s.chunk * s.kv_row(), packed = chunk * s.padded_chunk();
  const GradientRows dk = rows_at(a.dkv, a.dkv_before, s.k(sequence, kv_head) + at, s.kv_row());
  const GradientRows dv = rows_at(a.dkv, a.dkv_before, s.v(sequence, kv_head) + at, s.kv_row());
  if (!a.positions.key_chunk_is_seen(s, chunk)) {
    keep_rows(s.chunk, s.head_dim, dk);
    keep_rows(s.chunk, s.value_dim, dv);
    return;
  }
  store_rows(scratch.dkeys + packed * s.padded_dim(), s.padded_dim(), s.chunk, s.head_dim, 1.0f, dk);
  store_rows(scratch.dvalues + packed * s.padded_value(), s.padded_value(), s.chunk, s.value_dim, 1.0f, dv);
}

/// Items [begin, end) of all (sequence, KV head) pairs.
void backward_heads(const AttentionBackward& a, const AttentionShape& s, float* workspace, int64_t begin, int64_t end) {
  const BackwardScratch scratch(s, workspace);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t sequence = item / s.kv_heads, kv_head = item % s.kv_heads;
    for (int64_t chunk = 0; chunk < s.chunks; ++chunk) {
      if (!a.positions.key_chunk_is_seen(s, chunk)) continue;
      const int64_t at = chunk * s.chunk * s.kv_row();
      pack_chunk(s, a.kv + s.k(sequence, kv_head) + at, a.kv + s.v(sequence, kv_head) + at, chunk, scratch);
    }
    for (int64_t head = kv_head * s.group(); head < (kv_head + 1) * s.group(); ++head) {
      backward_query_head(a, s, scratch, sequence, head);
    }
    for (int64_t chunk = 0; chunk < s.chunks; ++chunk) store_chunk(a, s, scratch, sequence, kv_head, chunk);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace foresail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foresail {
namespace {

HWY_EXPORT(backward_heads);

int64_t backward_workspace(const OpInstance& op, int threads) {
  return threads * BackwardScratch::floats(AttentionShape(op)) * static_cast<int64_t>(sizeof(float));
}

void run_backward(const OpInstance& op, const KernelArguments& a, const AttentionBackward& backward) {
  const AttentionShape shape(op);
  const int64_t scratch = BackwardScratch::floats(shape);
  parallel_ranges(shape.sequences * shape.kv_heads, 1, [&](int64_t begin, int64_t end, int thread) {
    HWY_DYNAMIC_DISPATCH(backward_heads)
    (backward, shape, static_cast<float*>(a.workspace) + thread * scratch, begin, end);
  });
}

void run_attention_backward(const OpInstance& op, const KernelArguments& a) {
  const AttentionBackward backward{.d_o = input(a, 0),
                                   .q = input(a, 1),
                                   .kv = input(a, 1),
                                   .o = input(a, 2),
                                   .lse = input(a, 3),
                                   .dq_before = nullptr,
                                   .dkv_before = nullptr,
                                   .dq = output(a, 0),
                                   .dkv = output(a, 0),
                                   .context = a.context,
                                   .mask = dropout_mask(op.attributes, a.context),
                                   .positions = ChunkPositions(op.attributes, a.context)};
  run_backward(op, a, backward);
}

void run_ring_attention_backward(const OpInstance& op, const KernelArguments& a) {
  const bool first_step = op.inputs.size() == 5;
  const AttentionBackward backward{.d_o = input(a, 0),
                                   .q = input(a, 1),
                                   .kv = input(a, 2),
                                   .o = input(a, 3),
                                   .lse = input(a, 4),
                                   .dq_before = first_step ? nullptr : input(a, 5),
                                   .dkv_before = first_step ? nullptr : input(a, 6),
                                   .dq = output(a, 0),
                                   .dkv = output(a, 1),
                                   .context = a.context,
                                   .mask = dropout_mask(op.attributes, a.context),
                                   .positions = ChunkPositions(op.attributes, a.context)};
  run_backward(op, a, backward);
}

void check_ring_backward(const OpInstance& op) { check_ring_attention(op, 5); }

}  // namespace

std::span<const CpuOp> attention_backward_ops() {
  static constexpr CpuOp kOps[] = {{.kind = OpKind::attention_backward,
                                    .operands = "do[T,AW] qkv[T,QKV] o[T,AW] lse[B,A,S] -> dqkv[T,QKV]",
                                    .run = run_attention_backward,
                                    .workspace = backward_workspace,
                                    .check = check_attention},
                                   {.kind = OpKind::ring_attention_backward,
                                    .operands = "do[T,AW] q[T,AD] kv[T,KV] o[T,AW] lse[B,A,S] dq?[T,AD] dkv?[T,KV] "
                                                "-> dq[T,AD] dkv[T,KV]",
                                    .run = run_ring_attention_backward,
                                    .workspace = backward_workspace,
                                    .check = check_ring_backward}};
  return kOps;
}

}  // namespace foresail
#endif  // HWY_ONCE
