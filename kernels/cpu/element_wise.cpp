// Element-wise operators: activations with their biases, SwiGLU, sums. Every element of an output depends on the same
// element of the inputs only, so all of them may run in place.
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/element_wise.cpp"
#include "hwy/foreach_target.h"  // must precede highway.h

#include "hwy/highway.h"
#include "kernels/cpu/internal.h"
#include "kernels/cpu/operand_check.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace foresail {
namespace HWY_NAMESPACE {
namespace {

void gelu_range(const float* x, float* y, int64_t count) {
  each_vector(count, [=](auto part, int64_t i) { part.store(gelu_of(part.load(x + i)), y + i); });
}

void gelu_backward_range(const float* dy, const float* x, float* dx, int64_t count) {
  each_vector(count, [=](auto part, int64_t i) {
    part.store(hn::Mul(part.load(dy + i), gelu_slope(part.load(x + i))), dx + i);
  });
}

void bias_gelu_row(const float* x, const float* bias, float* y, int64_t count) {
  each_vector(
      count, [=](auto part, int64_t i) { part.store(gelu_of(hn::Add(part.load(x + i), part.load(bias + i))), y + i); });
}

void bias_gelu_backward_row(const float* dy, const float* x, const float* bias, float* dx, int64_t count) {
  each_vector(count, [=](auto part, int64_t i) {
    const V32 slope = gelu_slope(hn::Add(part.load(x + i), part.load(bias + i)));
    part.store(hn::Mul(part.load(dy + i), slope), dx + i);
  });
}

/// y = silu(gate) up (Shazeer 2020).
void swiglu_row(const float* gate, const float* up, float* y, int64_t count) {
  each_vector(count, [=](auto part, int64_t i) {
    const V32 g = part.load(gate + i);
    part.store(hn::Mul(hn::Mul(g, sigmoid(g).value), part.load(up + i)), y + i);
  });
}

/// silu'(g) = s + g s (1 - s).
void swiglu_backward_row(const float* dy, const float* gate, const float* up, float* dgate, float* dup, int64_t count) {
  each_vector(count, [=](auto part, int64_t i) {
    const V32 gradient = part.load(dy + i), g = part.load(gate + i), u = part.load(up + i);
    const Sigmoid s = sigmoid(g);
    const V32 slope = hn::MulAdd(hn::Mul(g, s.value), s.complement, s.value);
    part.store(hn::Mul(hn::Mul(gradient, u), slope), dgate + i);
    part.store(hn::Mul(gradient, hn::Mul(g, s.value)), dup + i);
  });
}

void add_elements(const float* a, const float* b, float* out, int64_t count) {
  each_vector(count, [=](auto part, int64_t i) { part.store(hn::Add(part.load(a + i), part.load(b + i)), out + i); });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace foresail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace foresail {
namespace {

HWY_EXPORT(gelu_range);
HWY_EXPORT(gelu_backward_range);
HWY_EXPORT(bias_gelu_row);
HWY_EXPORT(bias_gelu_backward_row);
HWY_EXPORT(swiglu_row);
HWY_EXPORT(swiglu_backward_row);
HWY_EXPORT(add_elements);

/// body(begin, end) over ranges of the elements of output 0.
template <typename Body>
void over_elements(const OpInstance& op, const Body& body) {
  parallel_ranges(op.outputs[0].elements(), kElementGrain, [&](int64_t begin, int64_t end, int) { body(begin, end); });
}

/// body(row) for every row of output 0.
template <typename Body>
void over_rows(const OpInstance& op, const Body& body) {
  const TensorType& type = op.outputs[0];
  parallel_ranges(rows_of(type), row_grain(columns_of(type)), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) body(row);
  });
}

void run_gelu(const OpInstance& op, const KernelArguments& a) {
  over_elements(op, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(gelu_range)(input(a, 0) + begin, output(a, 0) + begin, end - begin);
  });
}

void run_gelu_backward(const OpInstance& op, const KernelArguments& a) {
  over_elements(op, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(gelu_backward_range)
    (input(a, 0) + begin, input(a, 1) + begin, output(a, 0) + begin, end - begin);
  });
}

void run_bias_gelu(const OpInstance& op, const KernelArguments& a) {
  const int64_t columns = columns_of(op.outputs[0]);
  over_rows(op, [&](int64_t row) {
    HWY_DYNAMIC_DISPATCH(bias_gelu_row)
    (input(a, 0) + row * columns, input(a, 1), output(a, 0) + row * columns, columns);
  });
}

void run_bias_gelu_backward(const OpInstance& op, const KernelArguments& a) {
  const int64_t columns = columns_of(op.outputs[0]);
  over_rows(op, [&](int64_t row) {
    const int64_t at = row * columns;
    HWY_DYNAMIC_DISPATCH(bias_gelu_backward_row)
    (input(a, 0) + at, input(a, 1) + at, input(a, 2), output(a, 0) + at, columns);
  });
}

void run_swiglu(const OpInstance& op, const KernelArguments& a) {
  const int64_t columns = columns_of(op.outputs[0]);
  over_rows(op, [&](int64_t row) {
    const float* gate = input(a, 0) + row * 2 * columns;
    HWY_DYNAMIC_DISPATCH(swiglu_row)(gate, gate + columns, output(a, 0) + row * columns, columns);
  });
}

void run_swiglu_backward(const OpInstance& op, const KernelArguments& a) {
  const int64_t columns = columns_of(op.inputs[0]);
  over_rows(op, [&](int64_t row) {
    const float* gate = input(a, 1) + row * 2 * columns;
    float* dgate = output(a, 0) + row * 2 * columns;
    HWY_DYNAMIC_DISPATCH(swiglu_backward_row)
    (input(a, 0) + row * columns, gate, gate + columns, dgate, dgate + columns, columns);
  });
}

/// In double, rounded once.
template <typename Sum, typename Added>
void add_reals(const OpInstance& op, const KernelArguments& a) {
  over_elements(op, [&](int64_t begin, int64_t end) {
    const Sum* x = input<Sum>(a, 0);
    const Added* y = input<Added>(a, 1);
    Sum* out = output<Sum>(a, 0);
    for (int64_t i = begin; i < end; ++i) out[i] = static_cast<Sum>(double{x[i]} + double{y[i]});
  });
}

void run_add(const OpInstance& op, const KernelArguments& a) {
  const bool wide = op.inputs[0].dtype == DType::f64, adds_wide = op.inputs[1].dtype == DType::f64;
  if (wide) return adds_wide ? add_reals<double, double>(op, a) : add_reals<double, float>(op, a);
  if (adds_wide) return add_reals<float, double>(op, a);
  over_elements(op, [&](int64_t begin, int64_t end) {
    add_range(input(a, 0) + begin, input(a, 1) + begin, output(a, 0) + begin, end - begin);
  });
}

void check_add(const OpInstance& op) {
  if (op.outputs[0].dtype != op.inputs[0].dtype) {
    refuse_operator(op, "the sum is not in the type of the first operand");
  }
}

void run_bias_add(const OpInstance& op, const KernelArguments& a) {
  const int64_t columns = columns_of(op.outputs[0]);
  over_rows(op, [&](int64_t row) {
    add_range(input(a, 0) + row * columns, input(a, 1), output(a, 0) + row * columns, columns);
  });
}

}  // namespace

void add_range(const float* a, const float* b, float* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(add_elements)(a, b, out, count);
}

void add_partial_sums(const float* partial, int64_t stride, int parts, float* out, int64_t count) {
  parallel_ranges(count, kElementGrain, [&](int64_t begin, int64_t end, int) {
    for (int part = 0; part < parts; ++part)
      add_range(out + begin, partial + part * stride + begin, out + begin, end - begin);
  });
}

std::span<const CpuOp> element_wise_ops() {
  static constexpr CpuOp kOps[] = {
      {OpKind::gelu, "x[n*] -> y[n*]", run_gelu},
      {OpKind::gelu_backward, "dy[n*] x[n*] -> dx[n*]", run_gelu_backward},
      {OpKind::bias_gelu, "x[T,F] bias[F] -> y[T,F]", run_bias_gelu},
      {OpKind::bias_gelu_backward, "dy[T,F] x[T,F] bias[F] -> dx[T,F]", run_bias_gelu_backward},
      {OpKind::swiglu, "gu[T,2F] -> y[T,F]", run_swiglu},
      {OpKind::swiglu_backward, "dy[T,F] gu[T,2F] -> dgu[T,2F]", run_swiglu_backward},
      {.kind = OpKind::add, .operands = "a:real[n*] b:real[n*] -> sum:real[n*]", .run = run_add, .check = check_add},
      {OpKind::bias_add, "x[T,N] bias[N] -> y[T,N]", run_bias_add},
  };
  return kOps;
}

}  // namespace foresail
#endif  // HWY_ONCE
