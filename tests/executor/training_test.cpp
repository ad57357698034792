// The hand-written Program on the real devices: the numbers are checked against formulas, not against another run.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/parallel.h"
#include "kernels/device.h"
#include "runtime/executor/executor.h"
#include "tests/executor/allocation_counter.h"
#include "tests/executor/tiny_program.h"

namespace foresail {
namespace {

using testing::tiny_program;
using testing::TinyProgram;

template <typename Scalar>
void fill(std::byte* at, int64_t count, double scale) {
  auto* values = reinterpret_cast<Scalar*>(at);
  for (int64_t i = 0; i < count; ++i)
    values[i] = static_cast<Scalar>(scale * std::sin(1.0 + 3.0 * static_cast<double>(i)));
}

struct DeviceCase {
  const char* name;
  DType dtype;
};

class TinyTraining : public ::testing::TestWithParam<DeviceCase> {
 protected:
  std::unique_ptr<Device> device() const {
    set_thread_count(1);
    return GetParam().dtype == DType::f64 ? make_reference_device() : make_cpu_device(1);
  }
  template <typename Visit>
  static void set_data(Executor& executor, const TinyProgram& tiny, const Visit& visit) {
    for (int64_t m = 0; m < tiny.sizes.micro_batches; ++m) {
      for (int64_t row = 0; row < tiny.sizes.rows; ++row) visit(executor.tokens(m), executor.targets(m), m, row);
    }
  }
  static void prepare(Executor& executor, Arena& arena, const TinyProgram& tiny, DType dtype) {
    const int64_t elements = tiny.sizes.vocabulary * tiny.sizes.hidden;
    for (const auto& [offset, scale] : {std::pair{tiny.layout.table, 1.0}, std::pair{tiny.layout.weight, 0.1}}) {
      if (dtype == DType::f64)
        fill<double>(arena.data() + offset, elements, scale);
      else
        fill<float>(arena.data() + offset, elements, scale);
    }
    set_data(executor, tiny, [](auto tokens, auto targets, int64_t m, int64_t row) {
      tokens[static_cast<size_t>(row)] = static_cast<int32_t>((m + row) % 5);
      targets[static_cast<size_t>(row)] = static_cast<int32_t>((m + 2 * row) % 5);
    });
    StepInputs& inputs = executor.step_inputs();
    inputs.learning_rate = 0.05;
    inputs.inverse_valid_tokens = 1.0 / static_cast<double>(tiny.sizes.rows * tiny.sizes.micro_batches);
  }
};

/// Mean cross-entropy of the tiny model, straight from its definition.
template <typename Scalar>
double expected_loss(const std::byte* arena, const TinyProgram& tiny, Executor& executor) {
  const auto* table = reinterpret_cast<const Scalar*>(arena + tiny.layout.table);
  const auto* weight = reinterpret_cast<const Scalar*>(arena + tiny.layout.weight);
  const auto& s = tiny.sizes;
  double total = 0;
  for (int64_t m = 0; m < s.micro_batches; ++m) {
    for (int64_t row = 0; row < s.rows; ++row) {
      const int64_t token = executor.tokens(m)[static_cast<size_t>(row)];
      std::vector<double> logits(static_cast<size_t>(s.vocabulary));
      double sum = 0;
      for (int64_t v = 0; v < s.vocabulary; ++v) {
        double logit = 0;
        for (int64_t h = 0; h < s.hidden; ++h)
          logit += double(table[token * s.hidden + h]) * double(weight[v * s.hidden + h]);
        logits[static_cast<size_t>(v)] = logit;
        sum += std::exp(logit);
      }
      total += std::log(sum) - logits[static_cast<size_t>(executor.targets(m)[static_cast<size_t>(row)])];
    }
  }
  return total / static_cast<double>(s.rows * s.micro_batches);
}

TEST_P(TinyTraining, LossMatchesTheFormulaAndFallsStepByStep) {
  TinyProgram tiny = tiny_program(GetParam().dtype);
  const auto kernels = device();
  give_workspace(tiny, *kernels);
  Arena arena(tiny.program.arena.bytes);
  Executor executor(tiny.program, *kernels, nullptr, arena, 0);
  prepare(executor, arena, tiny, GetParam().dtype);
  const bool exact = GetParam().dtype == DType::f64;
  const double expected =
      exact ? expected_loss<double>(arena.data(), tiny, executor) : expected_loss<float>(arena.data(), tiny, executor);
  executor.step();
  const double first = executor.metrics().loss;
  EXPECT_NEAR(first, expected, exact ? 1e-12 : 1e-6);
  EXPECT_GT(executor.metrics().grad_norm, 0);
  double last = first;
  for (int step = 2; step <= 40; ++step) {
    StepInputs& inputs = executor.step_inputs();
    inputs.step = step;
    inputs.beta1_power = std::pow(inputs.beta1, step);
    inputs.beta2_power = std::pow(inputs.beta2, step);
    executor.step();
    last = executor.metrics().loss;
  }
  EXPECT_LT(last, 0.8 * first);
}

TEST_P(TinyTraining, AStepAllocatesNothingAfterTheFirst) {
  TinyProgram tiny = tiny_program(GetParam().dtype);
  const auto kernels = device();
  give_workspace(tiny, *kernels);
  Arena arena(tiny.program.arena.bytes);
  Executor executor(tiny.program, *kernels, nullptr, arena, 0);
  executor.enable_trace();
  prepare(executor, arena, tiny, GetParam().dtype);
  executor.step();
  const int64_t before = testing::allocations(), held = testing::outstanding_allocations();
  executor.step();
  executor.step();
  EXPECT_EQ(testing::outstanding_allocations(), held);
  // oneDNN makes small objects of its own when a primitive executes and frees them again; nobody else allocates.
  if (GetParam().dtype == DType::f64) {
    EXPECT_EQ(testing::allocations(), before);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, TinyTraining,
                         ::testing::Values(DeviceCase{"reference", DType::f64}, DeviceCase{"cpu", DType::f32}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace foresail
