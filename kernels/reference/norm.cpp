// RMS norm (Zhang & Sennrich 2019), layer norm (Ba, Kiros & Hinton 2016), their fusion with the residual sum, and the
// RMS norm over each query and key head.
#include <cmath>

#include "kernels/reference/reference.h"

namespace foresail::reference {
namespace {

/// y = x * rstd * w, rstd = 1 / sqrt(mean(x^2) + epsilon), for one row. y may be x.
double rms_norm_row(const double* x, const double* w, double epsilon, int64_t n, double* y) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  const double rstd = 1.0 / std::sqrt(sum / n + epsilon);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * rstd * w[i];
  return rstd;
}

/// With g = dy * w: dx = rstd * g - x * rstd^3 * mean(g * x) (+ addend); dw += dy * x * rstd. dx may be dy or addend.
void rms_norm_backward_row(const double* dy, const double* x, const double* w, double rstd, const double* addend,
                           int64_t n, double* dx, double* dw) {
  double dot = 0;
  for (int64_t i = 0; i < n; ++i) dot += dy[i] * w[i] * x[i];
  const double pull = dot / n * rstd * rstd * rstd;
  for (int64_t i = 0; i < n; ++i) {
    const double gradient = dy[i];
    dw[i] += gradient * x[i] * rstd;
    dx[i] = gradient * w[i] * rstd - x[i] * pull + (addend != nullptr ? addend[i] : 0.0);
  }
}

struct Moments {
  double mean = 0, rstd = 0;
};

/// y = (x - mean) * rstd * w + b for one row, variance over n (biased).
Moments layer_norm_row(const double* x, const double* w, const double* b, double epsilon, int64_t n, double* y) {
  double mean = 0, variance = 0;
  for (int64_t i = 0; i < n; ++i) mean += x[i];
  mean /= n;
  for (int64_t i = 0; i < n; ++i) variance += (x[i] - mean) * (x[i] - mean);
  const double rstd = 1.0 / std::sqrt(variance / n + epsilon);
  for (int64_t i = 0; i < n; ++i) y[i] = (x[i] - mean) * rstd * w[i] + b[i];
  return {mean, rstd};
}

void rms_norm(const Run& run) {
  const int64_t rows = run.in_dim(0, 0), n = run.in_dim(0, 1);
  for (int64_t t = 0; t < rows; ++t) {
    run.out(1)[t] = rms_norm_row(run.in(0) + t * n, run.in(1), run.attributes().epsilon, n, run.out(0) + t * n);
  }
}

void rms_norm_backward(const Run& run) {
  const int64_t rows = run.in_dim(0, 0), n = run.in_dim(0, 1);
  for (int64_t t = 0; t < rows; ++t) {
    rms_norm_backward_row(run.in(0) + t * n, run.in(1) + t * n, run.in(2), run.in(3)[t],
                          run.has_input(4) ? run.in(4) + t * n : nullptr, n, run.out(0) + t * n, run.out(1));
  }
}

void layer_norm(const Run& run) {
  const int64_t rows = run.in_dim(0, 0), n = run.in_dim(0, 1);
  for (int64_t t = 0; t < rows; ++t) {
    const Moments moments =
        layer_norm_row(run.in(0) + t * n, run.in(1), run.in(2), run.attributes().epsilon, n, run.out(0) + t * n);
    run.out(1)[t] = moments.mean;
    run.out(2)[t] = moments.rstd;
  }
}

/// With g = dy * w and z = (x - mean) * rstd: dx = rstd * (g - mean(g) - z * mean(g * z)) (+ addend); dw += dy * z;
/// db += dy. dx may be dy or addend.
void layer_norm_backward(const Run& run) {
  const int64_t rows = run.in_dim(0, 0), n = run.in_dim(0, 1);
  const double* w = run.in(2);
  double *dw = run.out(1), *db = run.out(2);
  for (int64_t t = 0; t < rows; ++t) {
    const double *dy = run.in(0) + t * n, *x = run.in(1) + t * n;
    const double* addend = run.has_input(5) ? run.in(5) + t * n : nullptr;
    const double mean = run.in(3)[t], rstd = run.in(4)[t];
    double* dx = run.out(0) + t * n;
    double sum = 0, dot = 0;
    for (int64_t i = 0; i < n; ++i) {
      sum += dy[i] * w[i];
      dot += dy[i] * w[i] * (x[i] - mean) * rstd;
    }
    for (int64_t i = 0; i < n; ++i) {
      const double gradient = dy[i], z = (x[i] - mean) * rstd;
      dw[i] += gradient * z;
      db[i] += gradient;
      dx[i] = rstd * (gradient * w[i] - sum / n - z * dot / n) + (addend != nullptr ? addend[i] : 0.0);
    }
  }
}

/// sum may be x or r.
void add_rms_norm(const Run& run) {
  const int64_t rows = run.in_dim(0, 0), n = run.in_dim(0, 1);
  double* sum = run.out(0);
  for (int64_t i = 0; i < rows * n; ++i) sum[i] = run.in(0)[i] + run.in(1)[i];
  for (int64_t t = 0; t < rows; ++t) {
    run.out(2)[t] = rms_norm_row(sum + t * n, run.in(2), run.attributes().epsilon, n, run.out(1) + t * n);
  }
}

/// sum may be x or r.
void add_layer_norm(const Run& run) {
  const int64_t rows = run.in_dim(0, 0), n = run.in_dim(0, 1);
  double* sum = run.out(0);
  for (int64_t i = 0; i < rows * n; ++i) sum[i] = run.in(0)[i] + run.in(1)[i];
  for (int64_t t = 0; t < rows; ++t) {
    const Moments moments =
        layer_norm_row(sum + t * n, run.in(2), run.in(3), run.attributes().epsilon, n, run.out(1) + t * n);
    run.out(2)[t] = moments.mean;
    run.out(3)[t] = moments.rstd;
  }
}

/// rstd holds the A query heads of a row, then its G key heads.
void qk_norm(const Run& run) {
  const OpAttributes& a = run.attributes();
  const int64_t rows = run.in_dim(0, 0), width = run.in_dim(0, 1), normed = a.heads + a.kv_heads;
  for (int64_t t = 0; t < rows; ++t) {
    const double* qkv = run.in(0) + t * width;
    double* y = run.out(0) + t * width;
    for (int64_t h = 0; h < normed; ++h) {
      const double* w = h < a.heads ? run.in(1) : run.in(2);
      run.out(1)[t * normed + h] = rms_norm_row(qkv + h * a.head_dim, w, a.epsilon, a.head_dim, y + h * a.head_dim);
    }
    for (int64_t i = normed * a.head_dim; i < width; ++i) y[i] = qkv[i];
  }
}

/// qkv is the input of qk_norm. dqkv may be dqkv'.
void qk_norm_backward(const Run& run) {
  const OpAttributes& a = run.attributes();
  const int64_t rows = run.in_dim(0, 0), width = run.in_dim(0, 1), normed = a.heads + a.kv_heads;
  for (int64_t t = 0; t < rows; ++t) {
    const double *dy = run.in(0) + t * width, *qkv = run.in(1) + t * width;
    double* dx = run.out(0) + t * width;
    for (int64_t h = 0; h < normed; ++h) {
      const bool query = h < a.heads;
      rms_norm_backward_row(dy + h * a.head_dim, qkv + h * a.head_dim, query ? run.in(2) : run.in(3),
                            run.in(4)[t * normed + h], nullptr, a.head_dim, dx + h * a.head_dim,
                            query ? run.out(1) : run.out(2));
    }
    for (int64_t i = normed * a.head_dim; i < width; ++i) dx[i] = dy[i];
  }
}

constexpr Entry kKernels[] = {
    {OpKind::rms_norm, "[T,H] [H] -> [T,H] [T]", rms_norm},
    {OpKind::rms_norm_backward, "[T,H] [T,H] [H] [T] ?[T,H] -> [T,H] [H]", rms_norm_backward},
    {OpKind::layer_norm, "[T,H] [H] [H] -> [T,H] [T] [T]", layer_norm},
    {OpKind::layer_norm_backward, "[T,H] [T,H] [H] [T] [T] ?[T,H] -> [T,H] [H] [H]", layer_norm_backward},
    {OpKind::add_rms_norm, "[T,H] [T,H] [H] -> [T,H] [T,H] [T]", add_rms_norm},
    {OpKind::add_layer_norm, "[T,H] [T,H] [H] [H] -> [T,H] [T,H] [T] [T]", add_layer_norm},
    {OpKind::qk_norm, "[T,QKV] [D] [D] -> [T,QKV] [T,AG]", qk_norm},
    {OpKind::qk_norm_backward, "[T,QKV] [T,QKV] [D] [D] [T,AG] -> [T,QKV] [D] [D]", qk_norm_backward},
};

}  // namespace

std::span<const Entry> norm_kernels() { return kKernels; }

}  // namespace foresail::reference
