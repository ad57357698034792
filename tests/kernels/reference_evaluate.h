// Calls the reference device (or another) like a function: for tests that state what an operator computes.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/kernels/support.h"

namespace foresail::kernel_tests {

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<double> values;
  DType dtype = DType::f64;
};

/// A tensor of standard normal numbers; `stream` picks which.
Tensor random_tensor(std::vector<int64_t> shape, uint64_t stream);
/// A tensor whose elements are all `value`.
Tensor constant_tensor(std::vector<int64_t> shape, double value);
/// Token or target ids.
Tensor id_tensor(std::vector<double> ids);

/// Where and when an operator runs.
struct Place {
  StepInputs step;
  KernelContext context;
};

/// The outputs after one run; `outputs` gives their shapes and what they hold before.
std::vector<std::vector<double>> evaluate(OpKind kind, const OpAttributes& attributes,
                                          const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                                          const Place& place = {});

/// The same on any device.
std::vector<std::vector<double>> evaluate_on(Device& device, OpKind kind, const OpAttributes& attributes,
                                             const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                                             const Place& place);

/// Every element within `tolerance`.
::testing::AssertionResult all_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance);

}  // namespace foresail::kernel_tests
