#include "tests/kernels/support.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>

#include "core/error.h"
#include "core/float16.h"

namespace foresail::kernel_tests {
namespace {

constexpr size_t kGuardBytes = 256;  // keeps the alignment of the buffer behind it
constexpr std::byte kGuard{0xA5};

/// A buffer of `bytes` with guards before and after it.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    const size_t whole = (2 * kGuardBytes + bytes_ + 63) / 64 * 64;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(64, whole)));
    std::fill_n(memory_.get(), whole, kGuard);
    whole_ = whole;
  }
  std::byte* data() { return memory_.get() + kGuardBytes; }
  const std::byte* data() const { return memory_.get() + kGuardBytes; }
  size_t bytes() const { return bytes_; }
  bool guards_intact() const {
    const std::byte* first = memory_.get();
    const auto is_guard = [](std::byte byte) { return byte == kGuard; };
    return std::all_of(first, data(), is_guard) && std::all_of(data() + bytes_, first + whole_, is_guard);
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  size_t bytes_, whole_ = 0;
  std::unique_ptr<std::byte, Free> memory_;
};

template <typename T>
void store(const std::vector<double>& values, std::byte* to) {
  for (size_t i = 0; i < values.size(); ++i) {
    const T value = static_cast<T>(values[i]);
    std::memcpy(to + i * sizeof(T), &value, sizeof(T));
  }
}

template <typename T>
std::vector<double> load(const std::byte* from, int64_t count) {
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    values[i] = value;
  }
  return values;
}

void store_as(DType dtype, const std::vector<double>& values, std::byte* to) {
  switch (dtype) {
    case DType::f64: return store<double>(values, to);
    case DType::f32: return store<float>(values, to);
    case DType::i32: return store<int32_t>(values, to);
    case DType::f16:
    case DType::bf16: break;
  }
  const std::vector<float> single(values.begin(), values.end());
  round_to_16_bit(single.data(), to, dtype, std::ssize(single));
}

std::vector<double> load_as(DType dtype, const std::byte* from, int64_t count) {
  switch (dtype) {
    case DType::f64: return load<double>(from, count);
    case DType::f32: return load<float>(from, count);
    case DType::i32: return load<int32_t>(from, count);
    case DType::f16:
    case DType::bf16: break;
  }
  std::vector<float> single(static_cast<size_t>(count));
  widen(from, dtype, single.data(), count);
  return {single.begin(), single.end()};
}

int shared_input(const std::vector<InPlace>& shared, size_t output) {
  for (const InPlace& pair : shared) {
    if (pair.output == static_cast<int>(output)) return pair.input;
  }
  return -1;
}

bool is_shared(const std::vector<InPlace>& shared, size_t input) {
  return std::any_of(shared.begin(), shared.end(),
                     [&](const InPlace& pair) { return pair.input == static_cast<int>(input); });
}

std::vector<std::unique_ptr<GuardedBuffer>> buffers_of(const std::vector<TensorType>& types,
                                                       const std::vector<std::vector<double>>& values) {
  std::vector<std::unique_ptr<GuardedBuffer>> buffers;
  for (size_t i = 0; i < types.size(); ++i) {
    buffers.push_back(std::make_unique<GuardedBuffer>(types[i].bytes()));
    ensure(static_cast<int64_t>(values[i].size()) == types[i].elements(),
           "a value for every element of a test operand");
    store_as(types[i].dtype, values[i], buffers.back()->data());
  }
  return buffers;
}

}  // namespace

TestCase in_double(TestCase test) {
  for (auto* side : {&test.op.inputs, &test.op.outputs}) {
    for (TensorType& type : *side) {
      if (type.dtype != DType::i32) type.dtype = DType::f64;
    }
  }
  return test;
}

std::vector<TestCase> test_cases_of(OpKind kind, DType dtype) {
  std::vector<TestCase> cases = all_test_cases(dtype);
  std::erase_if(cases, [&](const TestCase& test) { return test.op.kind != kind; });
  return cases;
}

Operands run_case(Device& device, const TestCase& test, const Operands& before, const std::vector<InPlace>& shared) {
  const OpInstance& op = test.op;
  const auto inputs = buffers_of(op.inputs, before.inputs);
  const auto outputs = buffers_of(op.outputs, before.outputs);
  std::vector<void*> input_pointers, output_pointers;
  for (const auto& buffer : inputs) input_pointers.push_back(buffer->data());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const int input = shared_input(shared, i);
    output_pointers.push_back(input < 0 ? outputs[i]->data() : inputs[static_cast<size_t>(input)]->data());
  }
  const auto kernel = device.bind(op);
  EXPECT_EQ(device.workspace_bytes(op), kernel->workspace_bytes()) << test.name;
  GuardedBuffer workspace(kernel->workspace_bytes());
  KernelArguments arguments{input_pointers, output_pointers, workspace.data(), test.context};
  arguments.context.step = &test.step;
  kernel->run(arguments);

  Operands after;
  EXPECT_TRUE(workspace.guards_intact()) << test.name << " writes outside its workspace";
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_TRUE(inputs[i]->guards_intact()) << test.name << " writes outside input " << i;
    after.inputs.push_back(load_as(op.inputs[i].dtype, inputs[i]->data(), op.inputs[i].elements()));
    if (is_shared(shared, i)) continue;
    GuardedBuffer original(op.inputs[i].bytes());
    store_as(op.inputs[i].dtype, before.inputs[i], original.data());
    EXPECT_EQ(std::memcmp(original.data(), inputs[i]->data(), original.bytes()), 0)
        << test.name << " changes input " << i;
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_TRUE(outputs[i]->guards_intact()) << test.name << " writes outside output " << i;
    const auto* data = static_cast<const std::byte*>(output_pointers[i]);
    after.outputs.push_back(load_as(op.outputs[i].dtype, data, op.outputs[i].elements()));
  }
  return after;
}

bool is_defined(const OpInstance& op, int output, int64_t element) {
  const bool scores = op.kind == OpKind::attention_scores;
  const bool gradient = op.kind == OpKind::attention_context_backward && output == 0;
  if (!scores && !gradient) return true;
  const int64_t length = op.outputs[static_cast<size_t>(output)].shape.back();
  return element % length <= element / length % length;
}

::testing::AssertionResult outputs_agree(const TestCase& test, const Operands& expected, const Operands& actual,
                                         double tolerance) {
  for (size_t i = 0; i < expected.outputs.size(); ++i) {
    const std::vector<double>&want = expected.outputs[i], &have = actual.outputs[i];
    if (want.size() != have.size())
      return ::testing::AssertionFailure() << test.name << ": output " << i << " differs in size";
    double largest = 0;
    for (size_t j = 0; j < want.size(); ++j) {
      if (is_defined(test.op, static_cast<int>(i), static_cast<int64_t>(j)) && std::isfinite(want[j])) {
        largest = std::max(largest, std::abs(want[j]));
      }
    }
    for (size_t j = 0; j < want.size(); ++j) {
      if (!is_defined(test.op, static_cast<int>(i), static_cast<int64_t>(j))) continue;
      const bool same = want[j] == have[j] || (std::isnan(want[j]) && std::isnan(have[j]));
      if (same || std::abs(want[j] - have[j]) <= tolerance * largest) continue;
      return ::testing::AssertionFailure() << test.name << ": output " << i << ", element " << j << " is " << have[j]
                                           << ", expected " << want[j] << " (largest magnitude " << largest << ")";
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace foresail::kernel_tests
