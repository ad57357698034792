// What the files of test cases share: a collector, and short ways to say shapes and places.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/support.h"

namespace foresail::kernel_tests {

using Shape = std::vector<int64_t>;

/// Collects cases. Every kind is laid out by one function below.
struct Cases {
  DType dtype;
  std::vector<TestCase> list;

  TensorType real(Shape shape) const { return {dtype, std::move(shape)}; }
  TensorType ids(int64_t count) const { return {DType::i32, {count}}; }
  TensorType exact(int64_t count) const { return {DType::f64, {count}}; }

  TestCase& add(OpKind kind, const std::string& variant, const OpAttributes& attributes, std::vector<TensorType> inputs,
                std::vector<TensorType> outputs) {
    TestCase test;
    test.name = std::string(name_of(kind)) + "/" + variant;
    test.op = {kind, attributes, std::move(inputs), std::move(outputs)};
    test.step.step = 3;
    test.step.seed = 0x1234567890abcdef;
    test.step.learning_rate = 0.01;
    test.step.beta1_power = std::pow(test.step.beta1, 3);
    test.step.beta2_power = std::pow(test.step.beta2, 3);
    test.step.weight_decay = 0.1;
    test.step.inverse_valid_tokens = 1.0 / 37;
    test.context.layer = 2;
    list.push_back(std::move(test));
    return list.back();
  }
};

inline void place(TestCase& test, int32_t tensor_rank, int32_t tensor_size) {
  test.context.tensor_rank = tensor_rank;
  test.context.tensor_size = tensor_size;
}

inline void place_in_context(TestCase& test, int32_t context_rank, int32_t context_size) {
  test.context.context_rank = context_rank;
  test.context.context_size = context_size;
}

inline std::string text(const Shape& shape) {
  std::string result;
  for (const int64_t size : shape) result += (result.empty() ? "" : "x") + std::to_string(size);
  return result;
}

}  // namespace foresail::kernel_tests
