// Causal attention backward in tiles: probabilities are rebuilt from the log-sum-exp (FlashAttention-2, Dao 2023,
// algorithm 2). One thread takes whole (sequence, KV head) pairs with all their query heads, so it alone writes their
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
  const float *d_o, *qkv, *o, *lse;
  float* dqkv;
  KernelContext context;
  DropoutMask mask;
};

/// One thread's buffers in the workspace.
struct BackwardScratch {
  float *keys_transposed, *values_transposed;  ///< [S / tile][D][tile]
  float* keys;                                 ///< [S][padded D]
  float *dkeys, *dvalues;                      ///< [S][padded D], summed over the query heads of the group
  float *query, *d_o, *dquery;                 ///< tiles [tile][padded D]; the query is scaled
  float *p, *ds;                               ///< tiles [tile][tile]
  float* delta;                                ///< [tile]

  static int64_t floats(const AttentionShape& s) {
    return round_up(2 * s.head_dim * s.padded_length() + 3 * s.padded_length() * s.padded_dim() +
                        3 * s.tile * s.padded_dim() + 2 * s.tile * s.tile + s.tile,
                    kTileAlign);
  }

  BackwardScratch(const AttentionShape& s, float* at) {
    const auto take = [&at](int64_t count) {
      float* taken = at;
      at += count;
      return taken;
    };
    const int64_t rows = s.padded_length(), width = s.padded_dim();
    keys_transposed = take(s.head_dim * rows);
    values_transposed = take(s.head_dim * rows);
    keys = take(rows * width);
    dkeys = take(rows * width);
    dvalues = take(rows * width);
    query = take(s.tile * width);
    d_o = take(s.tile * width);
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

void pack_head(const AttentionShape& s, const float* k, const float* v, const BackwardScratch& scratch) {
  for (int64_t first = 0; first < s.length; first += s.tile) {
    const int64_t keys = std::min(s.tile, s.length - first), row = s.qkv_row();
    transpose_tile(k + first * row, row, keys, s.head_dim, scratch.keys_transposed + first * s.head_dim, s.tile,
                   s.tile);
    transpose_tile(v + first * row, row, keys, s.head_dim, scratch.values_transposed + first * s.head_dim, s.tile,
                   s.tile);
  }
  copy_tile(k, s.qkv_row(), s.length, s.head_dim, 1.0f, scratch.keys, s.padded_dim());
  std::fill_n(scratch.dkeys, s.length * s.padded_dim(), 0.0f);
  std::fill_n(scratch.dvalues, s.length * s.padded_dim(), 0.0f);
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
                      int64_t sequence, int64_t head, int64_t first, int64_t key) {
  const int64_t queries = std::min(s.tile, s.length - first), keys = std::min(s.tile, s.length - key);
  HWY_ALIGN float factors[kLargestTile];
  const float* lse = a.lse + s.lse(sequence, head) + first;
  for (int64_t i = 0; i < queries; ++i) {
    const float* used = nullptr;
    if (s.probability > 0) {
      const uint64_t position = dropout_score_position(a.context, sequence, head, s.heads, first + i, s.length);
      dropout_factors(a.mask, position + static_cast<uint64_t>(key), s.tile, factors);
      used = factors;
    }
    probability_row(scratch.p + i * s.tile, scratch.ds + i * s.tile, s.tile, visible_keys(s, first + i, key, keys),
                    lse[i], scratch.delta[i], used);
  }
}

/// The gradients that one tile of queries gives to one tile of keys, and receives from it.
void backward_tile_pair(const AttentionBackward& a, const AttentionShape& s, const BackwardScratch& scratch,
                        int64_t sequence, int64_t head, int64_t first, int64_t key) {
  const int64_t queries = std::min(s.tile, s.length - first), keys = std::min(s.tile, s.length - key);
  const int64_t width = s.padded_dim();
  const bool diagonal = key == first;
  const Triangle result = diagonal ? Triangle::columns : Triangle::none;
  const Triangle by_query = diagonal ? Triangle::depth_end : Triangle::none;
  const Triangle by_key = diagonal ? Triangle::depth_begin : Triangle::none;
  tile_product(queries, s.tile, s.head_dim, {scratch.query, width, 1},
               {scratch.keys_transposed + key * s.head_dim, s.tile}, {scratch.p, s.tile, false}, result);
  tile_product(queries, s.tile, s.head_dim, {scratch.d_o, width, 1},
               {scratch.values_transposed + key * s.head_dim, s.tile}, {scratch.ds, s.tile, false}, result);
  probability_tile(a, s, scratch, sequence, head, first, key);
  tile_product(keys, width, queries, {scratch.p, 1, s.tile}, {scratch.d_o, width},
               {scratch.dvalues + key * width, width, true}, by_key);
  tile_product(keys, width, queries, {scratch.ds, 1, s.tile}, {scratch.query, width},
               {scratch.dkeys + key * width, width, true}, by_key);
  tile_product(queries, width, keys, {scratch.ds, s.tile, 1}, {scratch.keys + key * width, width},
               {scratch.dquery, width, true}, by_query);
}

/// delta_i = do_i . o_i, which equals the sum over j of p_ij dp_ij.
void sum_deltas(const AttentionBackward& a, const AttentionShape& s, const BackwardScratch& scratch, int64_t at,
                int64_t queries) {
  for (int64_t i = 0; i < queries; ++i) {
    const float *d_o = a.d_o + at + i * s.o_row(), *o = a.o + at + i * s.o_row();
    scratch.delta[i] =
        sum_vectors(s.head_dim, [=](auto part, int64_t c) { return hn::Mul(part.load(d_o + c), part.load(o + c)); });
  }
}

void store_rows(const float* from, int64_t from_row, int64_t rows, int64_t columns, float factor, float* to,
                int64_t to_row) {
  const V32 scale = set(factor);
  for (int64_t row = 0; row < rows; ++row) {
    const float* source = from + row * from_row;
    float* target = to + row * to_row;
    each_vector(columns, [=](auto part, int64_t i) { part.store(hn::Mul(part.load(source + i), scale), target + i); });
  }
}

void backward_query_head(const AttentionBackward& a, const AttentionShape& s, const BackwardScratch& scratch,
                         int64_t sequence, int64_t head) {
  const int64_t width = s.padded_dim();
  for (int64_t first = 0; first < s.length; first += s.tile) {
    const int64_t queries = std::min(s.tile, s.length - first);
    const int64_t q_at = s.q(sequence, head) + first * s.qkv_row(), o_at = s.o(sequence, head) + first * s.o_row();
    copy_tile(a.qkv + q_at, s.qkv_row(), queries, s.head_dim, s.scale, scratch.query, width);
    copy_tile(a.d_o + o_at, s.o_row(), queries, s.head_dim, 1.0f, scratch.d_o, width);
    sum_deltas(a, s, scratch, o_at, queries);
    std::fill_n(scratch.dquery, queries * width, 0.0f);
    for (int64_t key = s.first_key_tile(first); key <= first; key += s.tile) {
      backward_tile_pair(a, s, scratch, sequence, head, first, key);
    }
    store_rows(scratch.dquery, width, queries, s.head_dim, s.scale, a.dqkv + q_at, s.qkv_row());
  }
}

/// Items [begin, end) of all (sequence, KV head) pairs.
void backward_heads(const AttentionBackward& a, const AttentionShape& s, float* workspace, int64_t begin, int64_t end) {
  const BackwardScratch scratch(s, workspace);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t sequence = item / s.kv_heads, kv_head = item % s.kv_heads, width = s.padded_dim();
    pack_head(s, a.qkv + s.k(sequence, kv_head), a.qkv + s.v(sequence, kv_head), scratch);
    for (int64_t head = kv_head * s.group(); head < (kv_head + 1) * s.group(); ++head) {
      backward_query_head(a, s, scratch, sequence, head);
    }
    store_rows(scratch.dkeys, width, s.length, s.head_dim, 1.0f, a.dqkv + s.k(sequence, kv_head), s.qkv_row());
    store_rows(scratch.dvalues, width, s.length, s.head_dim, 1.0f, a.dqkv + s.v(sequence, kv_head), s.qkv_row());
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

void run_attention_backward(const OpInstance& op, const KernelArguments& a) {
  const AttentionShape shape(op);
  const AttentionBackward backward{input(a, 0),
                                   input(a, 1),
                                   input(a, 2),
                                   input(a, 3),
                                   output(a, 0),
                                   a.context,
                                   dropout_mask(op.attributes, a.context)};
  const int64_t scratch = BackwardScratch::floats(shape);
  parallel_ranges(shape.sequences * shape.kv_heads, 1, [&](int64_t begin, int64_t end, int thread) {
    HWY_DYNAMIC_DISPATCH(backward_heads)
    (backward, shape, static_cast<float*>(a.workspace) + thread * scratch, begin, end);
  });
}

}  // namespace

std::span<const CpuOp> attention_backward_ops() {
  static constexpr CpuOp kOps[] = {{.kind = OpKind::attention_backward,
                                    .operands = "do[T,AD] qkv[T,QKV] o[T,AD] lse[B,A,S] -> dqkv[T,QKV]",
                                    .run = run_attention_backward,
                                    .workspace = backward_workspace,
                                    .check = check_attention}};
  return kOps;
}

}  // namespace foresail
#endif  // HWY_ONCE
