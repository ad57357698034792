// Tests that hold for every device: each with its element type and how exactly it computes.
#pragma once

#include <limits>
#include <memory>
#include <ostream>
#include <string>

#include "tests/kernels/reference_evaluate.h"

namespace foresail::kernel_tests {

/// A back end and how exactly it computes.
struct Backend {
  const char* name;
  DType dtype;
  double tolerance;           ///< of a forward result, relative to the largest element
  double backward_tolerance;  ///< of a gradient

  std::unique_ptr<Device> make() const { return dtype == DType::f64 ? make_reference_device() : make_cpu_device(1); }
  Tensor random(std::vector<int64_t> shape, uint64_t stream) const {
    return of(random_tensor(std::move(shape), stream));
  }
  /// An output before the run.
  Tensor blank(std::vector<int64_t> shape) const {
    return of(constant_tensor(std::move(shape), std::numeric_limits<double>::quiet_NaN()));
  }
  Tensor of(Tensor tensor) const {
    tensor.dtype = dtype;
    for (double& value : tensor.values) {
      if (dtype == DType::f32) value = static_cast<float>(value);
    }
    return tensor;
  }
};

inline const Backend kBackends[] = {{"reference", DType::f64, 1e-12, 1e-12}, {"cpu", DType::f32, 2e-6, 5e-6}};

// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest looks for this name
inline void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

inline std::string name_of_backend(const ::testing::TestParamInfo<Backend>& info) { return info.param.name; }

inline Tensor with_values(Tensor tensor, std::vector<double> values) {
  tensor.values = std::move(values);
  return tensor;
}

}  // namespace foresail::kernel_tests
