// Every kind of operator has a kernel and a test case; every case runs, touches only its outputs, leaves nothing
// unwritten, and gives the same wherever its output may lie. Wrong operators are refused.
#include <cmath>
#include <set>

#include "core/error.h"
#include "tests/kernels/support.h"

namespace foresail::kernel_tests {
namespace {

TEST(ReferenceDevice, HasAKernelAndATestCaseForEveryKind) {
  const auto device = make_reference_device();
  std::set<OpKind> kinds;
  for (const TestCase& test : all_test_cases(DType::f64)) kinds.insert(test.op.kind);
  for (int i = 0; i < kOpKindCount; ++i) {
    const OpKind kind = static_cast<OpKind>(i);
    EXPECT_TRUE(device->supports(kind, DType::f64)) << name_of(kind);
    EXPECT_FALSE(device->supports(kind, DType::f32)) << name_of(kind);
    EXPECT_TRUE(kinds.contains(kind)) << name_of(kind) << " has no test case";
  }
}

TEST(ReferenceDevice, TestCasesHaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const TestCase& test : all_test_cases(DType::f64)) EXPECT_TRUE(names.insert(test.name).second) << test.name;
}

/// adamw and clip_scale must carry what is not finite; masked scores are undefined.
bool may_hold_nan(const TestCase& test) { return test.op.kind == OpKind::clip_scale; }

TEST(ReferenceDevice, WritesEveryDefinedElementAndNothingElse) {
  const auto device = make_reference_device();
  for (const TestCase& test : all_test_cases(DType::f64)) {
    if (may_hold_nan(test)) continue;
    const Operands after = run_case(*device, test, random_operands(test));
    for (size_t i = 0; i < after.outputs.size(); ++i) {
      for (size_t j = 0; j < after.outputs[i].size(); ++j) {
        if (!is_defined(test.op, static_cast<int>(i), static_cast<int64_t>(j))) continue;
        const bool empty_shard = test.op.kind == OpKind::cross_entropy_stats && j % 3 == 0;
        ASSERT_TRUE(std::isfinite(after.outputs[i][j]) || (empty_shard && std::isinf(after.outputs[i][j])))
            << test.name << " output " << i << " element " << j;
      }
    }
  }
}

TEST(ReferenceDevice, ResultsDoNotDependOnSharedBuffers) {
  const auto device = make_reference_device();
  int tried = 0;
  for (const TestCase& test : all_test_cases(DType::f64)) {
    const Operands before = random_operands(test);
    const Operands expected = run_case(*device, test, before);
    std::vector<InPlace> allowed = info(test.op.kind).in_place;
    if (test.op.kind == OpKind::clip_scale) allowed = {{0, 0}};
    for (const InPlace& shared : allowed) {
      if (shared.input >= static_cast<int>(test.op.inputs.size())) continue;
      ++tried;
      EXPECT_TRUE(outputs_agree(test, expected, run_case(*device, test, before, {shared}), 0))
          << "output " << shared.output << " in the buffer of input " << shared.input;
    }
  }
  EXPECT_GT(tried, 50);
}

TEST(ReferenceDevice, RefusesAnotherElementTypeByName) {
  const TestCase test = test_cases_of(OpKind::rope, DType::f32).front();
  try {
    make_reference_device()->bind(test.op);
    FAIL() << "rope in f32 was bound";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    EXPECT_NE(error.thing().find("rope in f32"), std::string::npos) << error.what();
  }
}

/// Variants of an operator that must be refused: an operand lost or added, a dimension changed or lost.
std::vector<OpInstance> broken(const OpInstance& op) {
  std::vector<OpInstance> result;
  const auto change = [&](auto&& edit) {
    OpInstance copy = op;
    edit(copy);
    result.push_back(std::move(copy));
  };
  change([](OpInstance& copy) {
    copy.outputs.pop_back();
    copy.outputs.insert(copy.outputs.end(), 7, {DType::f64, {1}});
  });
  if (!op.inputs.empty()) {
    change([](OpInstance& copy) { copy.inputs.clear(); });
    change([](OpInstance& copy) { copy.inputs.insert(copy.inputs.end(), 7, {DType::f64, {1}}); });
  }
  change([](OpInstance& copy) { copy.outputs.clear(); });
  return result;
}

TEST(ReferenceDevice, TakesTheRotationTableInFloat32) {
  const auto device = make_reference_device();
  TestCase test = test_cases_of(OpKind::rope, DType::f64).front();
  const Operands in_f64 = random_operands(test);
  const Operands expected = run_case(*device, test, in_f64);
  test.op.inputs[1].dtype = DType::f32;
  const Operands after = run_case(*device, test, in_f64);
  EXPECT_TRUE(outputs_agree(test, expected, after, 1e-7));
  EXPECT_NE(expected.outputs, after.outputs) << "the table was not read in f32";
  TestCase table = test_cases_of(OpKind::rope_table, DType::f64).front();
  const Operands exact = run_case(*device, table, random_operands(table));
  table.op.outputs[0].dtype = DType::f32;
  EXPECT_TRUE(outputs_agree(table, exact, run_case(*device, table, random_operands(table)), 1e-7));
}

TEST(ReferenceDevice, RefusesWrongOperandCounts) {
  const auto device = make_reference_device();
  for (const TestCase& test : all_test_cases(DType::f64)) {
    for (const OpInstance& op : broken(test.op)) EXPECT_THROW(device->bind(op), Error) << test.name;
  }
}

bool is_rank_count(const TestCase& test, size_t operand, size_t dim) {
  return operand == 2 && dim == 0 && test.op.inputs[2].shape.size() == 3;
}

/// True if growing this dimension alone makes another legal operator (a table may have rows that nobody uses; an
/// operand of any shape that stands alone).
bool free_dimension(const TestCase& test, bool output, size_t operand, size_t dim) {
  const OpKind kind = test.op.kind;
  if (kind == OpKind::fill_zero || kind == OpKind::squared_norm)
    return operand == 0 && output == (kind == OpKind::fill_zero);
  if (kind == OpKind::embedding) return !output && operand == 1 && dim == 0;
  const bool loose_rows = kind == OpKind::position_embedding_backward && test.op.attributes.rows_cut;
  if (loose_rows && !output && dim == 0) return true;
  if (kind == OpKind::embedding_backward || kind == OpKind::position_embedding_backward) return output && dim == 0;
  if (kind == OpKind::position_embedding) return !output && operand == 1 && dim == 0;
  if (kind == OpKind::bias_backward) return !output && dim == 0;
  if (kind == OpKind::cross_entropy_stats) return !output && operand == 0 && dim == 1;
  if (kind == OpKind::cross_entropy_loss)
    return !output && ((operand == 0 && dim == 1) || is_rank_count(test, operand, dim));
  if (kind == OpKind::cross_entropy_backward) return !output && is_rank_count(test, operand, dim);
  return false;
}

TEST(ReferenceDevice, RefusesShapesThatDoNotFitEachOther) {
  const auto device = make_reference_device();
  for (const TestCase& test : all_test_cases(DType::f64)) {
    for (const bool output : {false, true}) {
      const size_t operands = (output ? test.op.outputs : test.op.inputs).size();
      for (size_t i = 0; i < operands; ++i) {
        const size_t dims = (output ? test.op.outputs : test.op.inputs)[i].shape.size();
        for (size_t dim = 0; dim < dims; ++dim) {
          if (free_dimension(test, output, i, dim)) continue;
          OpInstance op = test.op;
          (output ? op.outputs : op.inputs)[i].shape[dim] += 1;
          EXPECT_THROW(device->bind(op), Error)
              << test.name << (output ? " output " : " input ") << i << " dimension " << dim;
        }
      }
    }
  }
}

TEST(ReferenceDevice, RefusesAttributesThatItCannotCompute) {
  const auto device = make_reference_device();
  const auto refused = [&](OpKind kind, auto&& edit) {
    OpInstance op = test_cases_of(kind, DType::f64).front().op;
    ASSERT_NO_THROW(device->bind(op)) << name_of(kind);
    edit(op.attributes);
    EXPECT_THROW(device->bind(op), Error) << name_of(kind);
  };
  refused(OpKind::dropout, [](OpAttributes& a) { a.probability = 1; });
  refused(OpKind::dropout, [](OpAttributes& a) { a.probability = -0.1; });
  refused(OpKind::attention, [](OpAttributes& a) { a.window = -1; });
  refused(OpKind::attention, [](OpAttributes& a) { a.sequence_length = 0; });
  refused(OpKind::attention, [](OpAttributes& a) { a.sequence_length = 3; });
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

}  // namespace
}  // namespace foresail::kernel_tests
