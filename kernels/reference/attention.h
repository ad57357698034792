// What fused and unfused attention share: where heads lie in a packed row and which keys a query sees.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/op.h"

namespace foresail::reference {

/// Packed rows [A query heads, G key heads, D wide, G value heads, W wide]. Query head h uses KV head h / (A / G)
/// (grouped-query attention, Ainslie et al. 2023).
struct HeadLayout {
  int64_t sequence_length, heads, kv_heads, head_dim, value_dim, width;

  explicit HeadLayout(const OpAttributes& a)
      : sequence_length(a.sequence_length),
        heads(a.heads),
        kv_heads(a.kv_heads),
        head_dim(a.head_dim),
        value_dim(a.value_width()),
        width(a.qkv_columns()) {}

  int64_t kv_head(int64_t head) const { return head / (heads / kv_heads); }
  int64_t row(int64_t sequence, int64_t position) const { return (sequence * sequence_length + position) * width; }
  int64_t q(int64_t sequence, int64_t head, int64_t position) const {
    return row(sequence, position) + head * head_dim;
  }
  int64_t k(int64_t sequence, int64_t head, int64_t position) const {
    return row(sequence, position) + (heads + kv_head(head)) * head_dim;
  }
  int64_t v(int64_t sequence, int64_t head, int64_t position) const {
    return row(sequence, position) + (heads + kv_heads) * head_dim + kv_head(head) * value_dim;
  }
  /// Of one head in a row of o [T, A*W].
  int64_t o(int64_t sequence, int64_t head, int64_t position) const {
    return ((sequence * sequence_length + position) * heads + head) * value_dim;
  }
  /// Of key 0 in scores [T/S, A, S, S].
  int64_t score(int64_t sequence, int64_t head, int64_t query) const {
    return ((sequence * heads + head) * sequence_length + query) * sequence_length;
  }
};

/// Query i sees keys first_key(i) .. i: itself and, with a window, the window - 1 positions before it.
inline int64_t first_key(const OpAttributes& a, int64_t query) {
  return a.window > 0 ? std::max<int64_t>(0, query - a.window + 1) : 0;
}

inline double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

/// y += factor * x
inline void add_scaled(double factor, const double* x, int64_t n, double* y) {
  for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

}  // namespace foresail::reference
