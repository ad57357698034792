// Multi-head latent attention (DeepSeek-V2, section 2.1): the packed rows that attention reads, from what the products of
// the latents give. The last R of a query's and key's D columns are rotated, neighbours (2i, 2i + 1) together; all heads
// share the rotated part of the key. Threads own rows.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/latent_attention.cpp"
#include "hwy/foreach_target.h"  // must precede highway.h

#include <cstring>

#include "hwy/highway.h"
#include "kernels/cpu/internal.h"
#include "kernels/cpu/operand_check.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/row_map.h"

#ifndef FORESAIL_KERNELS_CPU_LATENT_ATTENTION_ARGUMENTS
#define FORESAIL_KERNELS_CPU_LATENT_ATTENTION_ARGUMENTS
namespace foresail {
namespace {

/// Widths of a head's parts and of the rows of q [T, A(N+R)], kv [T, A(N+W)], k_rope [T, R] and packed rows.
struct LatentShape {
  int64_t heads, nope, rope, value;
  RowMap map;

  LatentShape(const OpAttributes& a, const KernelContext& context, int64_t rows)
      : heads(a.heads),
        nope(a.head_dim - a.rope_dim),
        rope(a.rope_dim),
        value(a.value_width()),
        map(a, context, rows) {}

  int64_t query() const { return nope + rope; }
  int64_t q_row() const { return heads * query(); }
  int64_t kv_row() const { return heads * (nope + value); }
  int64_t packed_row() const { return 2 * q_row() + heads * value; }
};

struct LatentJoin {
  const float *q, *kv, *k_rope, *table;
  float* qkv;
};

struct LatentJoinBackward {
  const float *dqkv, *table;
  float *dq, *dkv, *dk_rope;
};

inline void copy_floats(const float* from, int64_t count, float* to) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

}  // namespace
}  // namespace foresail
#endif

HWY_BEFORE_NAMESPACE();
namespace foresail {
namespace HWY_NAMESPACE {
namespace {

/// y = x rotated by the angles of `table` (cos, sin alternate) times `direction`; y may be x.
HWY_INLINE void rotate_neighbours(const float* x, const float* table, int64_t pairs, float direction, float* y) {
  const F32 d;
  const V32 sign = set(direction);
  int64_t i = 0;
  for (; i + kLanes <= pairs; i += kLanes) {
    V32 even, odd, cosine, sine;
    hn::LoadInterleaved2(d, x + 2 * i, even, odd);
    hn::LoadInterleaved2(d, table + 2 * i, cosine, sine);
    sine = hn::Mul(sine, sign);
    const V32 turned = hn::NegMulAdd(odd, sine, hn::Mul(even, cosine));
    hn::StoreInterleaved2(turned, hn::MulAdd(even, sine, hn::Mul(odd, cosine)), d, y + 2 * i);
  }
  for (; i < pairs; ++i) {
    const float cosine = table[2 * i], sine = direction * table[2 * i + 1];
    const float even = x[2 * i], odd = x[2 * i + 1];
    y[2 * i] = even * cosine - odd * sine;
    y[2 * i + 1] = odd * cosine + even * sine;
  }
}

void join_rows(const LatentJoin& a, const LatentShape& s, int64_t begin, int64_t end) {
  const int64_t pairs = s.rope / 2, query = s.query();
  for (int64_t row = begin; row < end; ++row) {
    const float *q = a.q + row * s.q_row(), *kv = a.kv + row * s.kv_row();
    const float* table = a.table + s.map.position(row) * pairs * 2;
    float *queries = a.qkv + row * s.packed_row(), *keys = queries + s.q_row(), *values = keys + s.q_row();
    float* shared = keys + s.nope;  // the rotated part of the first head's key: the others take it from there
    rotate_neighbours(a.k_rope + row * s.rope, table, pairs, 1, shared);
    for (int64_t head = 0; head < s.heads; ++head) {
      copy_floats(q + head * query, s.nope, queries + head * query);
      rotate_neighbours(q + head * query + s.nope, table, pairs, 1, queries + head * query + s.nope);
      const float* key = kv + head * (s.nope + s.value);
      copy_floats(key, s.nope, keys + head * query);
      if (head > 0) copy_floats(shared, s.rope, shared + head * query);
      copy_floats(key + s.nope, s.value, values + head * s.value);
    }
  }
}

void join_backward_rows(const LatentJoinBackward& a, const LatentShape& s, int64_t begin, int64_t end) {
  const int64_t pairs = s.rope / 2, query = s.query();
  for (int64_t row = begin; row < end; ++row) {
    const float *dqueries = a.dqkv + row * s.packed_row(), *dkeys = dqueries + s.q_row(), *dvalues = dkeys + s.q_row();
    const float* table = a.table + s.map.position(row) * pairs * 2;
    float *dq = a.dq + row * s.q_row(), *dkv = a.dkv + row * s.kv_row(), *shared = a.dk_rope + row * s.rope;
    copy_floats(dkeys + s.nope, s.rope, shared);
    for (int64_t head = 0; head < s.heads; ++head) {
      copy_floats(dqueries + head * query, s.nope, dq + head * query);
      rotate_neighbours(dqueries + head * query + s.nope, table, pairs, -1, dq + head * query + s.nope);
      float* key = dkv + head * (s.nope + s.value);
      copy_floats(dkeys + head * query, s.nope, key);
      copy_floats(dvalues + head * s.value, s.value, key + s.nope);
      if (head > 0) add_range(shared, dkeys + head * query + s.nope, shared, s.rope);
    }
    rotate_neighbours(shared, table, pairs, -1, shared);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace foresail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foresail {
namespace {

HWY_EXPORT(join_rows);
HWY_EXPORT(join_backward_rows);

void run_latent_join(const OpInstance& op, const KernelArguments& a) {
  const int64_t rows = rows_of(op.outputs[0]);
  const LatentShape shape(op.attributes, a.context, rows);
  const LatentJoin join{input(a, 0), input(a, 1), input(a, 2), input(a, 3), output(a, 0)};
  parallel_ranges(rows, row_grain(shape.packed_row()), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(join_rows)(join, shape, begin, end);
  });
}

void run_latent_join_backward(const OpInstance& op, const KernelArguments& a) {
  const int64_t rows = rows_of(op.inputs[0]);
  const LatentShape shape(op.attributes, a.context, rows);
  const LatentJoinBackward join{input(a, 0), input(a, 1), output(a, 0), output(a, 1), output(a, 2)};
  parallel_ranges(rows, row_grain(shape.packed_row()), [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(join_backward_rows)(join, shape, begin, end);
  });
}

void check_latent(const OpInstance& op) {
  const OpAttributes& a = op.attributes;
  if (a.heads != a.kv_heads) refuse_operator(op, "the heads have no keys of their own");
  if (a.rope_dim < 2 || a.rope_dim % 2 != 0 || a.rope_dim > a.head_dim)
    refuse_operator(op, "the rotated part is not an even part of a head");
  check_row_map(op, rows_of(op.inputs[0]));
}

}  // namespace

std::span<const CpuOp> latent_attention_ops() {
  static constexpr CpuOp kOps[] = {
      {.kind = OpKind::latent_join,
       .operands = "q[R,AD] kv[R,LKV] k_rope[R,RO] table[SC,RO/2,2] -> qkv[R,QKV]",
       .run = run_latent_join,
       .check = check_latent},
      {.kind = OpKind::latent_join_backward,
       .operands = "dqkv[R,QKV] table[SC,RO/2,2] -> dq[R,AD] dkv[R,LKV] dk_rope[R,RO]",
       .run = run_latent_join_backward,
       .check = check_latent},
  };
  return kOps;
}

}  // namespace foresail
#endif  // HWY_ONCE
