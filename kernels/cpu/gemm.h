// Matrix products of the cpu back end: the only place that knows the library (oneDNN) behind them.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>

namespace foresail {

/// Strides in elements of one operand of a (batched) product: outer and inner batch, row, column.
struct GemmStrides {
  int64_t outer = 0, inner = 0, row = 0, column = 1;
  auto operator<=>(const GemmStrides&) const = default;
};

/// c = scale * a b [+ bias] [+ c] with a [m,k], b [k,n], c [m,n], for every (outer, inner) batch element. Any of a and
/// b may be transposed by its strides; c must have unit column stride.
struct GemmShape {
  int64_t outer = 1, inner = 1;
  int64_t m = 0, n = 0, k = 0;
  GemmStrides a, b, c;
  bool bias = false;        ///< bias[n] is added to every row
  bool accumulate = false;  ///< c is read and added to
  float scale = 1;
  auto operator<=>(const GemmShape&) const = default;
};

/// The product of one (outer, inner) element, without bias and scale, whose sizes are known only now. Inside a parallel
/// region it is the calling thread's alone. False if the library failed: an exception must not leave such a region.
bool run_product(const GemmShape& shape, const float* a, const float* b, float* c);

/// A product built once and run often. It allocates nothing of its own when run.
class Gemm {
 public:
  virtual ~Gemm() = default;
  virtual void run(const float* a, const float* b, const float* bias, float* c, void* workspace) = 0;
  virtual int64_t workspace_bytes() const = 0;
};

/// Builds products for a fixed number of threads.
class GemmLibrary {
 public:
  explicit GemmLibrary(int threads);
  ~GemmLibrary();
  GemmLibrary(const GemmLibrary&) = delete;
  GemmLibrary& operator=(const GemmLibrary&) = delete;

  int threads() const { return threads_; }
  std::unique_ptr<Gemm> build(const GemmShape& shape);
  /// Scratch of the product; describes it to the library without generating code. Remembered per shape.
  int64_t workspace_bytes(const GemmShape& shape);
  /// Name of the library's implementation, for benchmarks and logs.
  const char* implementation(const GemmShape& shape);

 private:
  struct Engine;
  int threads_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace foresail
