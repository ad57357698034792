// The backward operators of the reference device against central differences of its forward operators. Which backward
// operators belong to a forward one is taken from the op table's derivative rule, so that rule and kernels are tested
// together. The functional is a fixed random combination of all outputs that have a gradient.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/philox.h"
#include "tests/kernels/support.h"

namespace foresail::kernel_tests {
namespace {

constexpr double kStep = 1e-5;       // of central differences
constexpr double kTolerance = 1e-7;  // of a gradient, relative to the largest of its tensor
constexpr size_t kMostProbes = 60;   // elements of one input that are varied

std::vector<double> random_values(uint64_t stream, size_t count) {
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = random_normal(99, stream, i);
  return values;
}

/// Outputs that no gradient flows into: statistics for backward.
bool is_statistic(OpKind kind, int output) {
  switch (kind) {
    case OpKind::rms_norm:
    case OpKind::layer_norm:
    case OpKind::qk_norm:
    case OpKind::moe_dispatch:
    case OpKind::attention: return output >= 1;
    case OpKind::moe_route: return output == 0;
    case OpKind::add_rms_norm:
    case OpKind::add_layer_norm: return output >= 2;
    default: return false;
  }
}

/// Runs the backward operators of one forward node as its derivative rule emits them.
class BackwardRun final : public GradientBuilder {
 public:
  BackwardRun(const TestCase& forward, const Operands& after, const std::vector<std::vector<double>>& cotangents)
      : forward_(forward), device_(make_reference_device()) {
    for (size_t i = 0; i < forward.op.inputs.size(); ++i)
      node_.inputs.push_back(add(forward.op.inputs[i], after.inputs[i]));
    for (size_t i = 0; i < forward.op.outputs.size(); ++i)
      node_.outputs.push_back(add(forward.op.outputs[i], after.outputs[i]));
    for (size_t i = 0; i < cotangents.size(); ++i)
      output_gradients_.push_back(add(forward.op.outputs[i], cotangents[i]));
    node_.kind = forward.op.kind;
    node_.attributes = forward.op.attributes;
    info(forward.op.kind).derivative(*this);
  }

  const Node& node() const override { return node_; }
  const GraphTensor& tensor(int index) const override { return graph_[static_cast<size_t>(index)]; }
  int output_gradient(int i) override {
    return is_statistic(node_.kind, i) ? -1 : output_gradients_[static_cast<size_t>(i)];
  }
  int gradient_like(int like) override {
    const size_t count = values_[static_cast<size_t>(like)].size();
    return add(types_[static_cast<size_t>(like)], std::vector<double>(count, std::nan("")));
  }
  /// Accumulators hold something before: what backward adds is the gradient.
  int weight_gradient(int forward_weight) override { return accumulator(forward_weight); }
  int contributed(int i) override { return accumulator(input(i)); }
  void contribute(int i, int gradient) override { gradients_[i] = gradient; }

  void emit(OpKind kind, const OpAttributes& attributes, std::vector<int> inputs, std::vector<int> outputs) override {
    TestCase test = forward_;
    test.name = forward_.name + " -> " + std::string(name_of(kind));
    test.op = {kind, attributes, {}, {}};
    Operands operands;
    for (const int index : inputs) {
      test.op.inputs.push_back(types_[static_cast<size_t>(index)]);
      operands.inputs.push_back(values_[static_cast<size_t>(index)]);
    }
    for (const int index : outputs) {
      test.op.outputs.push_back(types_[static_cast<size_t>(index)]);
      operands.outputs.push_back(values_[static_cast<size_t>(index)]);
    }
    const Operands after = run_case(*device_, test, operands);
    for (size_t i = 0; i < outputs.size(); ++i) values_[static_cast<size_t>(outputs[i])] = after.outputs[i];
  }

  /// Gradient of input i; empty if the rule gives none.
  std::vector<double> gradient(int i) const {
    const auto found = gradients_.find(i);
    if (found != gradients_.end()) return values_[static_cast<size_t>(found->second)];
    const auto accumulated = accumulators_.find(input(i));
    if (accumulated == accumulators_.end()) return {};
    std::vector<double> values = values_[static_cast<size_t>(accumulated->second.index)];
    for (size_t j = 0; j < values.size(); ++j) values[j] -= accumulated->second.before[j];
    return values;
  }

 private:
  struct Accumulator {
    int index;
    std::vector<double> before;
  };

  int add(const TensorType& type, std::vector<double> values) {
    graph_.push_back({"", TensorRole::activation, type.dtype, {}, -1});
    for (const int64_t size : type.shape) graph_.back().dims.push_back({DimName::fixed, size});
    types_.push_back(type);
    values_.push_back(std::move(values));
    return static_cast<int>(values_.size()) - 1;
  }

  int accumulator(int forward) {
    if (const auto found = accumulators_.find(forward); found != accumulators_.end()) return found->second.index;
    const std::vector<double> before = random_values(1000, values_[static_cast<size_t>(forward)].size());
    const int index = add(types_[static_cast<size_t>(forward)], before);
    accumulators_[forward] = {index, before};
    return index;
  }

  TestCase forward_;
  std::unique_ptr<Device> device_;
  Node node_;
  std::vector<GraphTensor> graph_;
  std::vector<TensorType> types_;
  std::vector<std::vector<double>> values_;
  std::vector<int> output_gradients_;
  std::map<int, int> gradients_;
  std::map<int, Accumulator> accumulators_;
};

/// Sum of output * cotangent over the elements that are defined and differentiable.
double functional(const TestCase& test, const Operands& after, const std::vector<std::vector<double>>& cotangents) {
  double sum = 0;
  for (size_t i = 0; i < after.outputs.size(); ++i) {
    if (is_statistic(test.op.kind, static_cast<int>(i))) continue;
    for (size_t j = 0; j < after.outputs[i].size(); ++j) {
      if (is_defined(test.op, static_cast<int>(i), static_cast<int64_t>(j)))
        sum += after.outputs[i][j] * cotangents[i][j];
    }
  }
  return sum;
}

/// Gradients that reach masked scores are undefined or 0 (ops/op.h); the functional leaves masked elements out.
std::vector<std::vector<double>> make_cotangents(const TestCase& test) {
  std::vector<std::vector<double>> cotangents;
  if (test.op.kind == OpKind::moe_balance_loss) return {{1}};  // its derivative is a seed of backward
  for (size_t i = 0; i < test.op.outputs.size(); ++i) {
    cotangents.push_back(random_values(200 + i, static_cast<size_t>(test.op.outputs[i].elements())));
    for (size_t j = 0; j < cotangents[i].size(); ++j) {
      if (!is_defined(test.op, static_cast<int>(i), static_cast<int64_t>(j))) cotangents[i][j] = 0;
    }
  }
  return cotangents;
}

/// Indices of at most kMostProbes elements, spread evenly.
std::vector<size_t> probes(size_t count) {
  std::vector<size_t> result;
  const size_t number = std::min(count, kMostProbes);
  for (size_t i = 0; i < number; ++i) result.push_back(i * count / number);
  return result;
}

double central_difference(Device& device, const TestCase& test, Operands operands, size_t input, size_t element,
                          const std::vector<std::vector<double>>& cotangents) {
  const double x = operands.inputs[input][element];
  operands.inputs[input][element] = x + kStep;
  const double above = functional(test, run_case(device, test, operands), cotangents);
  operands.inputs[input][element] = x - kStep;
  const double below = functional(test, run_case(device, test, operands), cotangents);
  return (above - below) / (2 * kStep);
}

/// Returns how many elements were compared.
int check_gradients(const TestCase& test) {
  const auto device = make_reference_device();
  const Operands operands = random_operands(test);
  const std::vector<std::vector<double>> cotangents = make_cotangents(test);
  const Operands after = run_case(*device, test, operands);
  const BackwardRun backward(test, after, cotangents);
  int compared = 0;
  for (size_t i = 0; i < operands.inputs.size(); ++i) {
    const std::vector<double> gradient = backward.gradient(static_cast<int>(i));
    if (gradient.empty()) continue;
    double largest = 1e-3;  // rounding of the functional hides what is smaller
    for (const double value : gradient) largest = std::max(largest, std::isfinite(value) ? std::abs(value) : 0.0);
    for (const size_t element : probes(gradient.size())) {
      if (std::isnan(operands.inputs[i][element])) continue;  // a masked score
      const double difference = central_difference(*device, test, operands, i, element, cotangents);
      // the gradient of a masked probability is undefined
      if (test.op.kind == OpKind::attention_context && i == 0 && std::isnan(gradient[element])) {
        EXPECT_NEAR(difference, 0, kTolerance) << test.name << " masked probability " << element << " is used";
        continue;
      }
      EXPECT_NEAR(gradient[element], difference, kTolerance * largest)
          << test.name << " input " << i << " element " << element;
      ++compared;
    }
  }
  return compared;
}

class ForwardKind : public ::testing::TestWithParam<OpKind> {};

TEST_P(ForwardKind, BackwardEqualsCentralDifferences) {
  int compared = 0;
  for (const TestCase& test : test_cases_of(GetParam(), DType::f64)) compared += check_gradients(test);
  EXPECT_GT(compared, 0);
}

/// All kinds with a derivative rule, but the loss, whose logits enter through the statistics (see the test below).
std::vector<OpKind> differentiable_kinds() {
  std::vector<OpKind> kinds;
  for (int i = 0; i < kOpKindCount; ++i) {
    const OpKind kind = static_cast<OpKind>(i);
    if (info(kind).derivative && kind != OpKind::cross_entropy_loss) kinds.push_back(kind);
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(ReferenceGradient, ForwardKind, ::testing::ValuesIn(differentiable_kinds()),
                         [](const auto& param) { return std::string(name_of(param.param)); });

/// Integers, the rotation table, the bias that only chooses, statistics.
bool is_constant(const OpInstance& op, size_t input) {
  if (op.inputs[input].dtype == DType::i32) return true;
  return ((op.kind == OpKind::rope || op.kind == OpKind::moe_route) && input == 1) ||
         (op.kind == OpKind::latent_join && input == 3) || (op.kind == OpKind::moe_balance_loss && input == 2);
}

/// Every weight and activation input must get a gradient from its rule.
TEST(ReferenceGradient, ReachesEveryFloatingInput) {
  for (const OpKind kind : differentiable_kinds()) {
    const TestCase test = test_cases_of(kind, DType::f64).back();
    const auto cotangents = make_cotangents(test);
    const BackwardRun backward(test, run_case(*make_reference_device(), test, random_operands(test)), cotangents);
    for (size_t i = 0; i < test.op.inputs.size(); ++i) {
      const bool constant = is_constant(test.op, i);
      EXPECT_EQ(backward.gradient(static_cast<int>(i)).empty(), constant) << name_of(kind) << " input " << i;
    }
  }
}

/// Loss of the whole group from the logits of one of its ranks; the other ranks' statistics stand.
double group_loss(const TestCase& backward, const Operands& operands) {
  const auto device = make_reference_device();
  const TensorType &logits = backward.op.inputs[0], &targets = backward.op.inputs[1], &stats = backward.op.inputs[2];
  TestCase statistics = backward;
  statistics.op = {
      OpKind::cross_entropy_stats, backward.op.attributes, {logits, targets}, {{DType::f64, {logits.shape[0], 3}}}};
  Operands own{{operands.inputs[0], operands.inputs[1]},
               {std::vector<double>(static_cast<size_t>(3 * logits.shape[0]))}};
  own = run_case(*device, statistics, own);

  TestCase loss = backward;
  loss.context.tensor_rank = 0;  // the rank that adds
  loss.op = {OpKind::cross_entropy_loss, backward.op.attributes, {logits, targets, stats}, {{DType::f64, {1}}}};
  Operands all{{operands.inputs[0], operands.inputs[1], operands.inputs[2]}, {{0}}};
  std::copy(own.outputs[0].begin(), own.outputs[0].end(),
            all.inputs[2].begin() + backward.context.tensor_rank * 3 * logits.shape[0]);
  return run_case(*device, loss, all).outputs[0][0];
}

TEST(ReferenceGradient, CrossEntropyEqualsCentralDifferencesOnEveryRank) {
  const auto device = make_reference_device();
  for (const TestCase& test : test_cases_of(OpKind::cross_entropy_backward, DType::f64)) {
    Operands operands = random_operands(test);
    const std::vector<double> gradient = run_case(*device, test, operands).outputs[0];
    double largest = test.step.inverse_valid_tokens;
    for (const size_t element : probes(gradient.size())) {
      const double x = operands.inputs[0][element];
      operands.inputs[0][element] = x + kStep;
      const double above = group_loss(test, operands);
      operands.inputs[0][element] = x - kStep;
      const double below = group_loss(test, operands);
      operands.inputs[0][element] = x;
      EXPECT_NEAR(gradient[element], (above - below) / (2 * kStep), kTolerance * largest)
          << test.name << " element " << element;
    }
  }
}

TEST(ReferenceGradient, AddendJoinsTheGradientOfNorms) {
  const auto device = make_reference_device();
  for (const OpKind kind : {OpKind::rms_norm_backward, OpKind::layer_norm_backward}) {
    for (const TestCase& test : test_cases_of(kind, DType::f64)) {
      const size_t addend = kind == OpKind::rms_norm_backward ? 4 : 5;
      if (test.op.inputs.size() <= addend) continue;
      Operands operands = random_operands(test);
      Operands with = run_case(*device, test, operands);
      TestCase bare = test;
      bare.op.inputs.pop_back();
      Operands bare_operands = operands;
      bare_operands.inputs.pop_back();
      Operands without = run_case(*device, bare, bare_operands);
      for (size_t i = 0; i < without.outputs[0].size(); ++i) without.outputs[0][i] += operands.inputs[addend][i];
      EXPECT_TRUE(outputs_agree(test, without, with, 1e-15));
    }
  }
}

}  // namespace
}  // namespace foresail::kernel_tests
