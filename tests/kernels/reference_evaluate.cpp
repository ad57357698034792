#include "tests/kernels/reference_evaluate.h"

#include <cmath>

#include "core/philox.h"

namespace foresail::kernel_tests {

Tensor constant_tensor(std::vector<int64_t> shape, double value) {
  Tensor tensor{std::move(shape), {}};
  const int64_t count = TensorType{DType::f64, tensor.shape}.elements();
  tensor.values.assign(static_cast<size_t>(count), value);
  return tensor;
}

Tensor random_tensor(std::vector<int64_t> shape, uint64_t stream) {
  Tensor tensor = constant_tensor(std::move(shape), 0);
  for (size_t i = 0; i < tensor.values.size(); ++i) tensor.values[i] = random_normal(7, stream, i);
  return tensor;
}

Tensor id_tensor(std::vector<double> ids) {
  const int64_t count = static_cast<int64_t>(ids.size());
  return {{count}, std::move(ids), DType::i32};
}

std::vector<std::vector<double>> evaluate(OpKind kind, const OpAttributes& attributes,
                                          const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                                          const Place& place) {
  return evaluate_on(*make_reference_device(), kind, attributes, inputs, outputs, place);
}

std::vector<std::vector<double>> evaluate_on(Device& device, OpKind kind, const OpAttributes& attributes,
                                             const std::vector<Tensor>& inputs, const std::vector<Tensor>& outputs,
                                             const Place& place) {
  TestCase test;
  test.name = name_of(kind);
  test.op = {kind, attributes, {}, {}};
  test.step = place.step;
  test.context = place.context;
  Operands operands;
  for (const Tensor& tensor : inputs) {
    test.op.inputs.push_back({tensor.dtype, tensor.shape});
    operands.inputs.push_back(tensor.values);
  }
  for (const Tensor& tensor : outputs) {
    test.op.outputs.push_back({tensor.dtype, tensor.shape});
    operands.outputs.push_back(tensor.values);
  }
  return run_case(device, test, operands).outputs;
}

::testing::AssertionResult all_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " elements";
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= tolerance)) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace foresail::kernel_tests
