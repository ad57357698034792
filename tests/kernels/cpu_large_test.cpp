// The cpu device at sizes where every thread works and attention spans several tiles: values, repeatability, workspace,
// allocation, and the code for every instruction set.
#include "kernels/cpu/targets.h"

#include <hwy/highway.h>  // after the targets

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <set>

#include "tests/kernels/cpu_cases.h"

namespace foresail::kernel_tests {
namespace {

TEST(CpuLargeCases, CoverEveryKind) {
  std::set<OpKind> kinds;
  for (const TestCase& test : large_test_cases()) kinds.insert(test.op.kind);
  EXPECT_EQ(kinds.size(), static_cast<size_t>(kOpKindCount));
}

class CpuLarge : public ::testing::TestWithParam<int> {};

TEST_P(CpuLarge, ComputesWhatTheReferenceComputes) {
  const Team team(GetParam());
  const auto cpu = make_cpu_device(GetParam());
  const auto reference = make_reference_device();
  for (const TestCase& test : large_test_cases()) {
    const Operands before = random_operands(test);
    const Operands expected = run_case(*reference, in_double(test), before);
    EXPECT_TRUE(outputs_agree(test, expected, run_case(*cpu, test, before), cpu_tolerance(test.op.kind)));
  }
}

INSTANTIATE_TEST_SUITE_P(Teams, CpuLarge, ::testing::Values(1, 2),
                         [](const auto& info) { return std::to_string(info.param) + "threads"; });

TEST(CpuLargeCases, RepeatThemselvesBitForBit) {
  const Team team(2);
  const auto cpu = make_cpu_device(2);
  for (const TestCase& test : large_test_cases()) {
    const Operands before = random_operands(test);
    EXPECT_TRUE(outputs_agree(test, run_case(*cpu, test, before), run_case(*cpu, test, before), 0));
  }
}

/// Memory of raw operands for runs outside run_case.
class RawOperands {
 public:
  RawOperands(const TestCase& test, const Operands& values) {
    for (size_t i = 0; i < test.op.inputs.size(); ++i) inputs_.push_back(store(test.op.inputs[i], values.inputs[i]));
    for (size_t i = 0; i < test.op.outputs.size(); ++i)
      outputs_.push_back(store(test.op.outputs[i], values.outputs[i]));
  }

  KernelArguments arguments(const TestCase& test, void* workspace) const {
    KernelArguments result{inputs_, outputs_, workspace, test.context};
    result.context.step = &test.step;
    return result;
  }

  double output(const TestCase& test, size_t index, size_t element) const {
    if (test.op.outputs[index].dtype == DType::f64) return static_cast<const double*>(outputs_[index])[element];
    if (test.op.outputs[index].dtype == DType::i32) return static_cast<const int32_t*>(outputs_[index])[element];
    return static_cast<const float*>(outputs_[index])[element];
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  void* store(const TensorType& type, const std::vector<double>& values) {
    owned_.emplace_back(std::aligned_alloc(64, static_cast<size_t>(type.bytes() + 127) / 64 * 64));
    void* memory = owned_.back().get();
    for (size_t i = 0; i < values.size(); ++i) {
      if (type.dtype == DType::f64) static_cast<double*>(memory)[i] = values[i];
      if (type.dtype == DType::f32) static_cast<float*>(memory)[i] = static_cast<float>(values[i]);
      if (type.dtype == DType::i32) static_cast<int32_t*>(memory)[i] = static_cast<int32_t>(values[i]);
    }
    return memory;
  }

  std::vector<std::unique_ptr<void, Free>> owned_;
  std::vector<void*> inputs_, outputs_;
};

bool same_number(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

TEST(CpuWorkspace, IsReadOnlyWhereItWasWritten) {
  const Team team(2);
  const auto cpu = make_cpu_device(2);
  for (const TestCase& test : large_test_cases()) {
    const Operands before = random_operands(test);
    const Operands expected = run_case(*cpu, test, before);
    const auto kernel = cpu->bind(test.op);
    const size_t bytes = static_cast<size_t>(kernel->workspace_bytes());
    std::vector<std::byte> memory(bytes + 64, std::byte{0xFF});  // NaN in every float
    void* workspace = memory.data();
    size_t space = memory.size();
    std::align(64, bytes, workspace, space);
    const RawOperands operands(test, before);
    kernel->run(operands.arguments(test, workspace));
    for (size_t i = 0; i < test.op.outputs.size(); ++i) {
      for (size_t j = 0; j < expected.outputs[i].size(); ++j) {
        if (!is_defined(test.op, static_cast<int>(i), static_cast<int64_t>(j))) continue;
        ASSERT_TRUE(same_number(operands.output(test, i, j), expected.outputs[i][j])) << test.name << " output " << i;
      }
    }
  }
}

bool is_matrix_product(OpKind kind) {
  const OpClass op_class = info(kind).op_class;
  return op_class == OpClass::matrix_product || op_class == OpClass::unfused_attention;
}

TEST(CpuKernels, AllocateNothingWhenRun) {
  const Team team(1);
  const auto cpu = make_cpu_device(1);
  for (const TestCase& test : large_test_cases()) {
    if (is_matrix_product(test.op.kind)) continue;  // the library behind them has its own habits
    const Operands before = random_operands(test);
    const RawOperands operands(test, before);
    const auto kernel = cpu->bind(test.op);
    std::vector<double> workspace(static_cast<size_t>(kernel->workspace_bytes() / 8 + 16));
    void* aligned = workspace.data();
    size_t space = workspace.size() * 8;
    std::align(64, static_cast<size_t>(kernel->workspace_bytes()), aligned, space);
    const KernelArguments arguments = operands.arguments(test, aligned);
    kernel->run(arguments);
    const int64_t count = allocations_so_far();
    kernel->run(arguments);
    EXPECT_EQ(allocations_so_far(), count) << test.name;
  }
}

/// Kinds whose outputs must show a NaN of their first floating-point input: what the reference makes NaN, cpu makes
/// NaN. (It may reach more: a tile multiplies masked zeros.)
bool must_show_nan(OpKind kind) {
  const OpClass op_class = info(kind).op_class;
  return op_class != OpClass::embedding && op_class != OpClass::optimizer;
}

TEST(CpuKernels, DoNotHideThatSomethingIsNotANumber) {
  const Team team(1);
  const auto cpu = make_cpu_device(1);
  const auto reference = make_reference_device();
  for (const TestCase& test : large_test_cases()) {
    if (!must_show_nan(test.op.kind) || test.op.inputs.empty()) continue;
    Operands before = random_operands(test);
    before.inputs[0][before.inputs[0].size() / 3] = std::numeric_limits<double>::quiet_NaN();
    const Operands expected = run_case(*reference, in_double(test), before);
    const Operands actual = run_case(*cpu, test, before);
    for (size_t i = 0; i < expected.outputs.size(); ++i) {
      for (size_t j = 0; j < expected.outputs[i].size(); ++j) {
        if (!is_defined(test.op, static_cast<int>(i), static_cast<int64_t>(j))) continue;
        ASSERT_TRUE(!std::isnan(expected.outputs[i][j]) || std::isnan(actual.outputs[i][j]))
            << test.name << " output " << i << " element " << j;
      }
    }
  }
}

/// Chooses an instruction set for all kernels and restores the best one.
class InstructionSet {
 public:
  explicit InstructionSet(int64_t target) { choose(target); }
  ~InstructionSet() { choose(0); }
  InstructionSet(const InstructionSet&) = delete;
  InstructionSet& operator=(const InstructionSet&) = delete;

 private:
  static void choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

TEST(CpuInstructionSets, AllComputeWhatTheReferenceComputes) {
  const Team team(1);
  const auto reference = make_reference_device();
  const std::vector<int64_t> targets = hwy::SupportedAndGeneratedTargets();
  ASSERT_FALSE(targets.empty());
  for (const int64_t target : targets) {
    const InstructionSet chosen(target);
    const auto cpu = make_cpu_device(1);
    for (const TestCase& test : large_test_cases()) {
      if (is_matrix_product(test.op.kind) && test.op.kind != OpKind::attention_softmax) continue;
      const Operands before = random_operands(test);
      const Operands expected = run_case(*reference, in_double(test), before);
      EXPECT_TRUE(outputs_agree(test, expected, run_case(*cpu, test, before), cpu_tolerance(test.op.kind)))
          << hwy::TargetName(target);
    }
  }
}

}  // namespace
}  // namespace foresail::kernel_tests
