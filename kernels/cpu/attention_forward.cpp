// Causal attention forward in tiles, without storing scores (FlashAttention-2, Dao 2023, algorithm 1). One thread takes
// whole (sequence, query head) pairs; keys and values are packed once per KV head.
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

#ifndef FORESAIL_KERNELS_CPU_ATTENTION_FORWARD_ARGUMENTS
#define FORESAIL_KERNELS_CPU_ATTENTION_FORWARD_ARGUMENTS
namespace foresail {
namespace {

struct AttentionForward {
  const float* qkv;
  float *o, *lse;
  KernelContext context;
  DropoutMask mask;
};

/// One thread's buffers in the workspace.
struct ForwardScratch {
  float* keys;           ///< transposed, [S / tile][D][tile]
  float* values;         ///< [S][padded D]
  float* query;          ///< scaled tile [tile][D]
  float* scores;         ///< tile [tile][tile]
  float* result;         ///< tile [tile][padded D]
  float *largest, *sum;  ///< [tile]: running maximum and sum of exponentials

  static int64_t floats(const AttentionShape& s) {
    return round_up(s.head_dim * s.padded_length() + s.padded_length() * s.padded_dim() + s.tile * s.padded_dim() +
                        s.tile * s.tile + s.tile * s.padded_dim() + 2 * s.tile,
                    kTileAlign);
  }

  ForwardScratch(const AttentionShape& s, float* at) {
    const auto take = [&at](int64_t count) {
      float* taken = at;
      at += count;
      return taken;
    };
    keys = take(s.head_dim * s.padded_length());
    values = take(s.padded_length() * s.padded_dim());
    query = take(s.tile * s.padded_dim());
    scores = take(s.tile * s.tile);
    result = take(s.tile * s.padded_dim());
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

void pack_keys_and_values(const AttentionShape& s, const float* k, const float* v, const ForwardScratch& scratch) {
  for (int64_t first = 0; first < s.length; first += s.tile) {
    const int64_t keys = std::min(s.tile, s.length - first);
    transpose_tile(k + first * s.qkv_row(), s.qkv_row(), keys, s.head_dim, scratch.keys + first * s.head_dim, s.tile,
                   s.tile);
  }
  copy_tile(v, s.qkv_row(), s.length, s.head_dim, 1.0f, scratch.values, s.padded_dim());
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
HWY_INLINE void softmax_tile(const AttentionShape& s, const ForwardScratch& scratch, int64_t first, int64_t queries,
                             int64_t key, int64_t keys) {
  HWY_ALIGN float tile_largest[kLargestTile];
  HWY_ALIGN float shrink[kLargestTile];
  std::fill_n(tile_largest, s.tile, -std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < queries; ++i) {
    const KeyRange seen = visible_keys(s, first + i, key, keys);
    if (seen.begin < seen.end)
      tile_largest[i] = max_of(scratch.scores + i * s.tile + seen.begin, seen.end - seen.begin);
  }
  raise_maxima(scratch, s.tile, tile_largest, shrink);
  for (int64_t i = 0; i < queries; ++i) {
    const KeyRange seen = visible_keys(s, first + i, key, keys);
    float* scores = scratch.scores + i * s.tile;
    if (shrink[i] != 1.0f) scale_row(scratch.result + i * s.padded_dim(), shrink[i], s.padded_dim());
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
void drop_scores(const AttentionForward& a, const AttentionShape& s, float* scores, int64_t sequence, int64_t head,
                 int64_t query, int64_t first_key) {
  HWY_ALIGN float factors[kLargestTile];
  const uint64_t position = dropout_score_position(a.context, sequence, head, s.heads, query, s.length);
  dropout_factors(a.mask, position + static_cast<uint64_t>(first_key), s.tile, factors);
  for (int64_t j = 0; j < s.tile; j += kLanes) {
    Whole::store(hn::Mul(Whole::load(scores + j), Whole::load(factors + j)), scores + j);
  }
}

/// o = result / sum; lse = largest + log sum.
void store_tile(const AttentionForward& a, const AttentionShape& s, const ForwardScratch& scratch, int64_t sequence,
                int64_t head, int64_t first, int64_t queries) {
  for (int64_t i = 0; i < queries; ++i) {
    const float* result = scratch.result + i * s.padded_dim();
    float* o = a.o + s.o(sequence, head) + (first + i) * s.o_row();
    const V32 inverse = set(1.0f / scratch.sum[i]);
    each_vector(s.head_dim, [=](auto part, int64_t c) { part.store(hn::Mul(part.load(result + c), inverse), o + c); });
  }
  float* lse = a.lse + s.lse(sequence, head) + first;
  each_vector(queries, [=](auto part, int64_t i) {
    const V32 log_sum = log_of(part.keep(part.load(scratch.sum + i), set(1.0f)));
    part.store(hn::Add(part.load(scratch.largest + i), log_sum), lse + i);
  });
}

/// One tile of queries of one head against all keys that it sees.
void attend_tile(const AttentionForward& a, const AttentionShape& s, const ForwardScratch& scratch, int64_t sequence,
                 int64_t head, int64_t first) {
  const int64_t queries = std::min(s.tile, s.length - first), width = s.padded_dim();
  copy_tile(a.qkv + s.q(sequence, head) + first * s.qkv_row(), s.qkv_row(), queries, s.head_dim, s.scale, scratch.query,
            width);
  std::fill_n(scratch.result, queries * width, 0.0f);
  std::fill_n(scratch.largest, s.tile, -std::numeric_limits<float>::infinity());
  std::fill_n(scratch.sum, s.tile, 0.0f);
  for (int64_t key = s.first_key_tile(first); key <= first; key += s.tile) {
    const int64_t keys = std::min(s.tile, s.length - key);
    const bool diagonal = key == first;
    tile_product(queries, s.tile, s.head_dim, {scratch.query, width, 1}, {scratch.keys + key * s.head_dim, s.tile},
                 {scratch.scores, s.tile, false}, diagonal ? Triangle::columns : Triangle::none);
    softmax_tile(s, scratch, first, queries, key, keys);
    for (int64_t i = 0; s.probability > 0 && i < queries; ++i) {
      drop_scores(a, s, scratch.scores + i * s.tile, sequence, head, first + i, key);
    }
    tile_product(queries, width, keys, {scratch.scores, s.tile, 1}, {scratch.values + key * width, width},
                 {scratch.result, width, true}, diagonal ? Triangle::depth_end : Triangle::none);
  }
  store_tile(a, s, scratch, sequence, head, first, queries);
}

/// Items [begin, end) of all (sequence, query head) pairs.
void attend_heads(const AttentionForward& a, const AttentionShape& s, float* workspace, int64_t begin, int64_t end) {
  const ForwardScratch scratch(s, workspace);
  int64_t packed = -1;
  for (int64_t item = begin; item < end; ++item) {
    const int64_t sequence = item / s.heads, head = item % s.heads, kv_head = head / s.group();
    if (packed != sequence * s.kv_heads + kv_head) {
      packed = sequence * s.kv_heads + kv_head;
      pack_keys_and_values(s, a.qkv + s.k(sequence, kv_head), a.qkv + s.v(sequence, kv_head), scratch);
    }
    for (int64_t first = 0; first < s.length; first += s.tile) attend_tile(a, s, scratch, sequence, head, first);
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

void run_attention(const OpInstance& op, const KernelArguments& a) {
  const AttentionShape shape(op);
  const AttentionForward forward{input(a, 0), output(a, 0), output(a, 1), a.context,
                                 dropout_mask(op.attributes, a.context)};
  const int64_t scratch = ForwardScratch::floats(shape);
  parallel_ranges(shape.sequences * shape.heads, 1, [&](int64_t begin, int64_t end, int thread) {
    HWY_DYNAMIC_DISPATCH(attend_heads)
    (forward, shape, static_cast<float*>(a.workspace) + thread * scratch, begin, end);
  });
}

}  // namespace

void check_attention(const OpInstance& op) {
  const OpAttributes& a = op.attributes;
  if (a.sequence_length < 1 || a.head_dim < 1)
    refuse_operator(op, "attributes sequence_length and head_dim must be positive");
  if (a.window < 0) refuse_operator(op, "the window is negative");
  if (!(a.probability >= 0 && a.probability < 1)) refuse_operator(op, "the dropout probability is not in [0, 1)");
}

std::span<const CpuOp> attention_ops() {
  static constexpr CpuOp kOps[] = {{.kind = OpKind::attention,
                                    .operands = "qkv[T,QKV] -> o[T,AD] lse[B,A,S]",
                                    .run = run_attention,
                                    .workspace = attention_workspace,
                                    .check = check_attention}};
  return kOps;
}

}  // namespace foresail
#endif  // HWY_ONCE
