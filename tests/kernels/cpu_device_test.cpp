// The cpu device against the reference device, for every kind of operator: values, places, threads.
#include <fmt/format.h>

#include <cmath>

#include "core/error.h"
#include "tests/kernels/cpu_cases.h"

namespace foresail::kernel_tests {
namespace {

void expect_equal_to_reference(Device& cpu, Device& reference, const TestCase& test, uint64_t seed = 1) {
  const Operands before = random_operands(test, seed);
  const Operands expected = run_case(reference, in_double(test), before);
  EXPECT_TRUE(outputs_agree(test, expected, run_case(cpu, test, before), cpu_tolerance(test.op.kind)));
}

TEST(CpuDevice, HasAKernelForEveryKindInFloat32AndIn16BitStorage) {
  const auto cpu = make_cpu_device(1);
  for (int i = 0; i < kOpKindCount; ++i) {
    const OpKind kind = static_cast<OpKind>(i);
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      EXPECT_TRUE(cpu->supports(kind, dtype)) << name_of(kind);
    }
    EXPECT_FALSE(cpu->supports(kind, DType::f64)) << name_of(kind);
  }
}

class CpuDeviceThreads : public ::testing::TestWithParam<int> {};

TEST_P(CpuDeviceThreads, ComputesWhatTheReferenceComputes) {
  const Team team(GetParam());
  const auto cpu = make_cpu_device(GetParam());
  const auto reference = make_reference_device();
  for (const TestCase& test : all_test_cases(DType::f32)) expect_equal_to_reference(*cpu, *reference, test);
}

TEST_P(CpuDeviceThreads, ResultsDoNotDependOnSharedBuffers) {
  const Team team(GetParam());
  const auto cpu = make_cpu_device(GetParam());
  int tried = 0;
  for (const TestCase& test : all_test_cases(DType::f32)) {
    const Operands before = random_operands(test);
    const Operands expected = run_case(*cpu, test, before);
    std::vector<InPlace> allowed = info(test.op.kind).in_place;
    if (test.op.kind == OpKind::clip_scale) allowed = {{0, 0}};
    for (const InPlace& shared : allowed) {
      if (shared.input >= static_cast<int>(test.op.inputs.size())) continue;
      const int64_t room = test.op.inputs[static_cast<size_t>(shared.input)].bytes();
      if (test.op.outputs[static_cast<size_t>(shared.output)].bytes() != room) continue;  // a static check refuses it
      ++tried;
      EXPECT_TRUE(outputs_agree(test, expected, run_case(*cpu, test, before, {shared}), 0))
          << "output " << shared.output << " in the buffer of input " << shared.input;
    }
  }
  EXPECT_GT(tried, 50);
}

INSTANTIATE_TEST_SUITE_P(Teams, CpuDeviceThreads, ::testing::Values(1, 2),
                         [](const auto& info) { return std::to_string(info.param) + "threads"; });

std::string message_of(Device& device, const OpInstance& op) {
  try {
    device.bind(op);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    return error.what();
  }
  return "";
}

TEST(CpuDevice, RefusesAnotherElementTypeByName) {
  const auto cpu = make_cpu_device(1);
  OpInstance op = test_cases_of(OpKind::rope, DType::f32).front().op;
  op.inputs[0].dtype = op.outputs[0].dtype = DType::f64;
  EXPECT_NE(message_of(*cpu, op).find("cpu has no kernel for rope in f64"), std::string::npos) << message_of(*cpu, op);
}

TEST(CpuDevice, RefusesEveryOperandOfAnotherType) {
  const auto cpu = make_cpu_device(1);
  for (const TestCase& test : all_test_cases(DType::f32)) {
    if (test.op.kind == OpKind::fill_zero) continue;  // zero is zero in every type
    for (const bool output : {false, true}) {
      const size_t operands = (output ? test.op.outputs : test.op.inputs).size();
      for (size_t i = 0; i < operands; ++i) {
        OpInstance op = test.op;
        DType& dtype = (output ? op.outputs : op.inputs)[i].dtype;
        dtype = dtype == DType::i32 ? DType::f64 : DType::i32;
        EXPECT_NE(message_of(*cpu, op).find(fmt::format("in {}", name_of(dtype))), std::string::npos) << test.name;
      }
    }
  }
}

TEST(CpuDevice, ASumHasTheTypeOfItsFirstOperand) {
  const auto cpu = make_cpu_device(1);
  const TensorType single{DType::f32, {8}}, wide{DType::f64, {8}};
  EXPECT_EQ(message_of(*cpu, {OpKind::add, {}, {wide, single}, {wide}}), "");
  EXPECT_NE(message_of(*cpu, {OpKind::add, {}, {wide, single}, {single}}).find("type of the first"), std::string::npos);
  EXPECT_NE(message_of(*cpu, {OpKind::add, {}, {single, wide}, {wide}}).find("type of the first"), std::string::npos);
}

TEST(CpuDevice, RefusesWrongOperandCounts) {
  const auto cpu = make_cpu_device(1);
  for (const TestCase& test : all_test_cases(DType::f32)) {
    OpInstance op = test.op;
    op.outputs.insert(op.outputs.end(), 7, {DType::f32, {1}});
    EXPECT_NE(message_of(*cpu, op), "") << test.name;
    op = test.op;
    op.outputs.clear();
    EXPECT_NE(message_of(*cpu, op), "") << test.name;
    if (op.inputs.empty()) continue;
    op = test.op;
    op.inputs.clear();
    EXPECT_NE(message_of(*cpu, op), "") << test.name;
  }
}

TEST(CpuDevice, RefusesShapesThatDoNotFitEachOther) {
  const auto cpu = make_cpu_device(1);
  const auto refused = [&](OpKind kind, bool output, size_t operand, size_t dim) {
    OpInstance op = test_cases_of(kind, DType::f32).front().op;
    EXPECT_EQ(message_of(*cpu, op), "") << name_of(kind);
    (output ? op.outputs : op.inputs)[operand].shape[dim] += 1;
    EXPECT_NE(message_of(*cpu, op), "") << name_of(kind) << (output ? " output " : " input ") << operand << ", " << dim;
  };
  for (const size_t dim : {0, 1}) {
    refused(OpKind::linear, false, 0, dim);
    refused(OpKind::linear, true, 0, dim);
    refused(OpKind::linear_backward_weight, true, 0, dim);
    refused(OpKind::rms_norm, false, 0, dim);
    refused(OpKind::swiglu, false, 0, dim);
    refused(OpKind::attention, false, 0, dim);
    refused(OpKind::attention_backward, false, 2, dim);
    refused(OpKind::cross_entropy, true, 0, dim);
    refused(OpKind::rope, false, 1, dim);
    refused(OpKind::split_qkv, true, 1, dim);
    refused(OpKind::heads_split, true, 0, dim + 1);
    refused(OpKind::heads_merge, true, 0, dim);
    refused(OpKind::rows_merge, false, 0, dim);
    refused(OpKind::rows_split, false, 0, dim);
    refused(OpKind::ring_attention, false, 1, dim);
    refused(OpKind::ring_attention_backward, true, 1, dim);
    refused(OpKind::cross_entropy_backward, false, 2, dim + 1);
  }
  refused(OpKind::adamw, true, 1, 0);
  refused(OpKind::adamw, false, 1, 0);
  refused(OpKind::embedding, false, 0, 0);
}

TEST(CpuDevice, RefusesAttributesThatItCannotCompute) {
  const auto cpu = make_cpu_device(1);
  const auto refused = [&](OpKind kind, auto&& edit) {
    OpInstance op = test_cases_of(kind, DType::f32).front().op;
    EXPECT_EQ(message_of(*cpu, op), "") << name_of(kind);
    edit(op.attributes);
    EXPECT_NE(message_of(*cpu, op), "") << name_of(kind);
  };
  refused(OpKind::dropout, [](OpAttributes& a) { a.probability = 1; });
  refused(OpKind::dropout, [](OpAttributes& a) { a.probability = std::nan(""); });
  refused(OpKind::attention, [](OpAttributes& a) { a.window = -1; });
  refused(OpKind::attention, [](OpAttributes& a) { a.sequence_length = 0; });
  refused(OpKind::attention, [](OpAttributes& a) { a.sequence_length = 3; });
  refused(OpKind::attention, [](OpAttributes& a) { a.kv_heads = 0; });
  refused(OpKind::attention_softmax, [](OpAttributes& a) { a.window = -1; });
  refused(OpKind::cross_entropy, [](OpAttributes& a) { a.vocabulary = 0; });
  refused(OpKind::cross_entropy, [](OpAttributes& a) { a.vocabulary = 1000; });
  refused(OpKind::rope_table, [](OpAttributes& a) { a.rope_theta = 0; });
  refused(OpKind::rope_table, [](OpAttributes& a) { a.rope_scaling = RopeScaling::llama3; });
  refused(OpKind::rope_table, [](OpAttributes& a) { a.rope_scaling = RopeScaling::yarn; });  // of 0 positions
  refused(OpKind::rope, [](OpAttributes& a) { a.rope_dim = 2; });
  refused(OpKind::latent_join, [](OpAttributes& a) { a.rope_dim = 0; });
  refused(OpKind::latent_join, [](OpAttributes& a) { a.value_dim = 3; });
  refused(OpKind::latent_join_backward, [](OpAttributes& a) { a.kv_heads = 1; });
  refused(OpKind::attention, [](OpAttributes& a) { a.value_dim = 3; });
  refused(OpKind::qk_norm, [](OpAttributes& a) { a.kv_heads = 0; });
  refused(OpKind::position_embedding, [](OpAttributes& a) { a.sequence_length = 10; });
  refused(OpKind::position_embedding, [](OpAttributes& a) { a.context_parallel = 2; });  // of an odd length
  refused(OpKind::dropout, [](OpAttributes& a) { a.sequence_length = 0; });
  refused(OpKind::attention, [](OpAttributes& a) { a.context_parallel = 2; });
  refused(OpKind::ring_attention, [](OpAttributes& a) { a.ring_step = 1; });
  refused(OpKind::ring_attention_backward, [](OpAttributes& a) { a.context_parallel = 0; });
  refused(OpKind::heads_split, [](OpAttributes& a) { a.head_dim = 2; });
  refused(OpKind::rows_split, [](OpAttributes& a) { a.sequence_length = 10; });
}

TEST(CpuDevice, RefusesNoThreads) { EXPECT_THROW(make_cpu_device(0), Error); }

}  // namespace
}  // namespace foresail::kernel_tests
