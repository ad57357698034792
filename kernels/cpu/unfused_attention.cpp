// Attention in separate steps that store scores [B, A, S, S], for stacks that run it so. Products are batched over
// sequences and KV heads, once per query head of the group; softmax is one pass per row.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/unfused_attention.cpp"
#include "hwy/foreach_target.h"  // must precede highway.h

#include <algorithm>
#include <cstring>
#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/operand_check.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace foresail {
namespace HWY_NAMESPACE {
namespace {

/// p = softmax of the `count` scores that the query sees.
void softmax_scores(const float* scores, float* p, int64_t count) {
  const V32 offset = set(max_of(scores, count));
  const float sum = sum_vectors(count, [=](auto part, int64_t i) {
    const V32 e = part.keep(exp_of(hn::Sub(part.load(scores + i), offset)), zero());
    part.store(e, p + i);
    return e;
  });
  const V32 inverse = set(1.0f / sum);
  each_vector(count, [=](auto part, int64_t i) { part.store(hn::Mul(part.load(p + i), inverse), p + i); });
}

/// ds = p (dp - sum p dp)
void softmax_gradient(const float* dp, const float* p, float* ds, int64_t count) {
  const V32 delta =
      set(sum_vectors(count, [=](auto part, int64_t i) { return hn::Mul(part.load(p + i), part.load(dp + i)); }));
  each_vector(count, [=](auto part, int64_t i) {
    part.store(hn::Mul(part.load(p + i), hn::Sub(part.load(dp + i), delta)), ds + i);
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace foresail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foresail {
namespace {

HWY_EXPORT(softmax_scores);
HWY_EXPORT(softmax_gradient);

void run_softmax(const OpInstance& op, const KernelArguments& a) {
  const int64_t length = columns_of(op.outputs[0]), window = op.attributes.window;
  parallel_ranges(op.outputs[0].elements() / length, row_grain(length), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t query = row % length, first = window > 0 ? std::max<int64_t>(0, query - window + 1) : 0;
      float* p = output(a, 0) + row * length;
      HWY_DYNAMIC_DISPATCH(softmax_scores)(input(a, 0) + row * length + first, p + first, query + 1 - first);
      std::fill(p, p + first, 0.0f);
      std::fill(p + query + 1, p + length, 0.0f);
    }
  });
}

void run_softmax_backward(const OpInstance& op, const KernelArguments& a) {
  const int64_t length = columns_of(op.outputs[0]);
  parallel_ranges(op.outputs[0].elements() / length, row_grain(length), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t seen = row % length + 1, at = row * length;
      float* ds = output(a, 0) + at;
      HWY_DYNAMIC_DISPATCH(softmax_gradient)(input(a, 0) + at, input(a, 1) + at, ds, seen);
      std::fill(ds + seen, ds + length, 0.0f);
    }
  });
}

void check_window(const OpInstance& op) {
  if (op.attributes.window < 0) refuse_operator(op, "the window is negative");
}

/// Strides of the query heads with one number within their group, of KV heads, and of scores: batches are (sequence, KV
/// head).
struct UnfusedShape {
  AttentionShape s;

  explicit UnfusedShape(const AttentionShape& shape) : s(shape) {}

  GemmStrides scores(bool transpose) const {
    const int64_t square = s.length * s.length;
    return strides(s.heads * square, s.group() * square, s.length, transpose);
  }
  GemmStrides query(bool transpose = false) const {
    return strides(s.length * s.q_row(), s.group() * s.head_dim, s.q_row(), transpose);
  }
  GemmStrides key(bool transpose = false) const {
    return strides(s.length * s.q_row(), s.head_dim, s.q_row(), transpose);
  }
  GemmStrides value(bool transpose = false) const {
    return strides(s.length * s.q_row(), s.value_dim, s.q_row(), transpose);
  }
  GemmStrides context() const { return strides(s.length * s.o_row(), s.group() * s.value_dim, s.o_row(), false); }

  /// Products with a result [S,S] over the width of a head, or of that width over S.
  GemmShape product(int64_t n, int64_t k, GemmStrides a, GemmStrides b, GemmStrides c) const {
    return {.outer = s.sequences, .inner = s.kv_heads, .m = s.length, .n = n, .k = k, .a = a, .b = b, .c = c};
  }

 private:
  static GemmStrides strides(int64_t outer, int64_t inner, int64_t row, bool transpose) {
    return transpose ? GemmStrides{outer, inner, 1, row} : GemmStrides{outer, inner, row, 1};
  }
};

AttentionShape shape_of(const OpInstance& op, size_t qkv_input) {
  OpInstance by_rows;
  by_rows.attributes = op.attributes;
  by_rows.inputs = {op.inputs[qkv_input]};
  return AttentionShape(by_rows);
}

/// One batched product of an operator, run once per query head of the group.
struct Product {
  GemmShape shape;
  /// Operands: of inputs if `from_input`, else of outputs; offset of query head r of each group.
  struct Operand {
    bool from_input;
    size_t index;
    int64_t offset, per_query_head;
  } a, b, c;
};

float* address(const KernelArguments& arguments, const Product::Operand& operand, int64_t r) {
  void* base = operand.from_input ? arguments.inputs[operand.index] : arguments.outputs[operand.index];
  return static_cast<float*>(base) + operand.offset + r * operand.per_query_head;
}

std::vector<Product> scores_products(const OpInstance& op) {
  const UnfusedShape u(shape_of(op, 0));
  const AttentionShape& s = u.s;
  GemmShape shape = u.product(s.length, s.head_dim, u.query(), u.key(true), u.scores(false));
  shape.scale = s.scale;
  return {{shape, {true, 0, s.q(0, 0), s.head_dim}, {true, 0, s.k(0, 0), 0}, {false, 0, 0, s.length * s.length}}};
}

std::vector<Product> context_products(const OpInstance& op) {
  const UnfusedShape u(shape_of(op, 1));
  const AttentionShape& s = u.s;
  const GemmShape shape = u.product(s.value_dim, s.length, u.scores(false), u.value(), u.context());
  return {{shape, {true, 0, 0, s.length * s.length}, {true, 1, s.v(0, 0), 0}, {false, 0, 0, s.value_dim}}};
}

std::vector<Product> scores_backward_products(const OpInstance& op) {
  const UnfusedShape u(shape_of(op, 1));
  const AttentionShape& s = u.s;
  const int64_t square = s.length * s.length;
  GemmShape dq = u.product(s.head_dim, s.length, u.scores(false), u.key(), u.query());
  GemmShape dk = u.product(s.head_dim, s.length, u.scores(true), u.query(), u.key());
  dq.scale = dk.scale = s.scale;
  dq.accumulate = dk.accumulate = true;
  return {{dq, {true, 0, 0, square}, {true, 1, s.k(0, 0), 0}, {false, 0, s.q(0, 0), s.head_dim}},
          {dk, {true, 0, 0, square}, {true, 1, s.q(0, 0), s.head_dim}, {false, 0, s.k(0, 0), 0}}};
}

std::vector<Product> context_backward_products(const OpInstance& op) {
  const UnfusedShape u(shape_of(op, 2));
  const AttentionShape& s = u.s;
  const int64_t square = s.length * s.length;
  const GemmShape dp = u.product(s.length, s.value_dim, u.context(), u.value(true), u.scores(false));
  GemmShape dv = u.product(s.value_dim, s.length, u.scores(true), u.context(), u.value());
  dv.accumulate = true;
  return {{dp, {true, 0, 0, s.value_dim}, {true, 2, s.v(0, 0), 0}, {false, 0, 0, square}},
          {dv, {true, 1, 0, square}, {true, 0, 0, s.value_dim}, {false, 1, s.v(0, 0), 0}}};
}

class ProductsKernel : public Kernel {
 public:
  ProductsKernel(std::vector<Product> products, int64_t group, int64_t zeroed_bytes, GemmLibrary& library)
      : products_(std::move(products)), group_(group), zeroed_bytes_(zeroed_bytes) {
    for (const Product& product : products_) {
      gemms_.push_back(library.build(product.shape));
      workspace_bytes_ = std::max(workspace_bytes_, gemms_.back()->workspace_bytes());
    }
  }

  void run(const KernelArguments& arguments) override {
    if (zeroed_bytes_ > 0) std::memset(arguments.outputs[1], 0, static_cast<size_t>(zeroed_bytes_));
    for (size_t i = 0; i < products_.size(); ++i) {
      const Product& product = products_[i];
      for (int64_t r = 0; r < group_; ++r) {
        gemms_[i]->run(address(arguments, product.a, r), address(arguments, product.b, r), nullptr,
                       address(arguments, product.c, r), arguments.workspace);
      }
    }
  }
  int64_t workspace_bytes() const override { return workspace_bytes_; }

 private:
  std::vector<Product> products_;
  std::vector<std::unique_ptr<Gemm>> gemms_;
  int64_t group_, zeroed_bytes_, workspace_bytes_ = 0;
};

using Products = std::vector<Product> (*)(const OpInstance&);

template <Products kProducts>
std::unique_ptr<Kernel> bind_products(const OpInstance& op, GemmLibrary& library) {
  // The context's backward also clears dqkv (output 1), whose q and k parts the scores' backward adds to.
  const int64_t zeroed = op.kind == OpKind::attention_context_backward ? op.outputs[1].bytes() : 0;
  return std::make_unique<ProductsKernel>(kProducts(op), op.attributes.heads / op.attributes.kv_heads, zeroed, library);
}

template <Products kProducts>
int64_t products_workspace(const OpInstance& op, GemmLibrary& library) {
  int64_t bytes = 0;
  for (const Product& product : kProducts(op)) bytes = std::max(bytes, library.workspace_bytes(product.shape));
  return bytes;
}

}  // namespace

std::span<const CpuOp> unfused_attention_ops() {
  static constexpr CpuOp kOps[] = {
      {.kind = OpKind::attention_scores,
       .operands = "qkv[T,QKV] -> scores[B,A,S,S]",
       .bind = bind_products<scores_products>,
       .bound_workspace = products_workspace<scores_products>,
       .check = check_attention},
      {.kind = OpKind::attention_softmax,
       .operands = "scores[B,A,S,S] -> p[B,A,S,S]",
       .run = run_softmax,
       .check = check_window},
      {.kind = OpKind::attention_context,
       .operands = "p[B,A,S,S] qkv[T,QKV] -> o[T,AW]",
       .bind = bind_products<context_products>,
       .bound_workspace = products_workspace<context_products>,
       .check = check_attention},
      {.kind = OpKind::attention_scores_backward,
       .operands = "dscores[B,A,S,S] qkv[T,QKV] -> dqkv[T,QKV]",
       .bind = bind_products<scores_backward_products>,
       .bound_workspace = products_workspace<scores_backward_products>,
       .check = check_attention},
      {.kind = OpKind::attention_softmax_backward,
       .operands = "dp[B,A,S,S] p[B,A,S,S] -> dscores[B,A,S,S]",
       .run = run_softmax_backward},
      {.kind = OpKind::attention_context_backward,
       .operands = "do[T,AW] p[B,A,S,S] qkv[T,QKV] -> dp[B,A,S,S] dqkv[T,QKV]",
       .bind = bind_products<context_backward_products>,
       .bound_workspace = products_workspace<context_backward_products>,
       .check = check_attention},
  };
  return kOps;
}

}  // namespace foresail
#endif  // HWY_ONCE
