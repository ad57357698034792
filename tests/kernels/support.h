// Shared by the tests of every back end: a list of operators with interesting shapes, random operands for them, and a
// way to run a kernel that notices when it touches what it must not.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "ops/op_table.h"

namespace foresail::kernel_tests {

/// One operator, where it runs, and what its name should say when a test fails.
struct TestCase {
  std::string name;  ///< "attention/grouped"
  OpInstance op;
  StepInputs step;
  KernelContext context;        ///< `step` is set when it runs
  std::vector<double> metrics;  ///< of clip_scale and adamw
};

/// Cases for every kind. Operands that follow the run's precision have `dtype`; losses, sums and metrics are f64,
/// tokens and targets i32.
std::vector<TestCase> all_test_cases(DType dtype);
/// Those of one kind.
std::vector<TestCase> test_cases_of(OpKind kind, DType dtype);
/// The same case for the reference device: floating operands become f64.
TestCase in_double(TestCase test);

/// Contents of all operands, whatever their type, as doubles.
struct Operands {
  std::vector<std::vector<double>> inputs, outputs;
};

/// Operands before a run, each number exact in its dtype. Inputs that a forward operator makes (statistics,
/// probabilities, tables) are made by the reference device's. Outputs that are only written hold NaN, accumulators
/// random numbers. Entries that ops/op.h calls undefined are NaN.
Operands random_operands(const TestCase& test, uint64_t seed = 1);

/// Runs the kernel on copies of the operands; `shared` puts an output into the buffer of an input. Returns all operands
/// as the run left them (a shared input reads like its output). Reports a test failure if the kernel wrote outside an
/// operand or its workspace, or changed an input that is not shared.
Operands run_case(Device& device, const TestCase& test, const Operands& before,
                  const std::vector<InPlace>& shared = {});

/// False for entries that ops/op.h leaves undefined (masked scores and their gradients).
bool is_defined(const OpInstance& op, int output, int64_t element);

/// Every defined element agrees within `tolerance` x the largest finite magnitude of its output tensor. NaN and
/// infinity must be the same on both sides.
::testing::AssertionResult outputs_agree(const TestCase& test, const Operands& expected, const Operands& actual,
                                         double tolerance);

}  // namespace foresail::kernel_tests
