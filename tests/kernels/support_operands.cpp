// Random operands for a test case.
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "core/error.h"
#include "core/float16.h"
#include "core/philox.h"
#include "tests/kernels/expert_cases.h"

namespace foresail::kernel_tests {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<double> normal_values(uint64_t seed, uint64_t stream, int64_t count, double scale = 1) {
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = scale * random_normal(seed, stream, i);
  return values;
}

double round_to(DType dtype, double value) {
  if (!is_16_bit_float(dtype)) return dtype == DType::f32 ? static_cast<double>(static_cast<float>(value)) : value;
  const auto single = static_cast<float>(value);
  uint16_t bits = 0;
  round_to_16_bit(&single, &bits, dtype, 1);
  float rounded = 0;
  widen(&bits, dtype, &rounded, 1);
  return rounded;
}

void round_all(const std::vector<TensorType>& types, std::vector<std::vector<double>>& values) {
  for (size_t i = 0; i < types.size(); ++i) {
    for (double& value : values[i]) value = round_to(types[i].dtype, value);
  }
}

/// Ids below `bound`; every fifth is -1 if `some_negative`.
std::vector<double> ids(uint64_t seed, int64_t count, int64_t bound, bool some_negative) {
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<double>(random_bits(seed, 77, i) % static_cast<uint64_t>(bound));
    if (some_negative && i % 5 == 2) values[i] = -1;
  }
  return values;
}

/// Outputs of `kind` on the reference device, for the same place and attributes.
std::vector<std::vector<double>> outputs_of(const TestCase& test, OpKind kind, const std::vector<TensorType>& inputs,
                                            const std::vector<std::vector<double>>& values,
                                            const std::vector<std::vector<int64_t>>& outputs) {
  TestCase forward = test;
  forward.op = {kind, test.op.attributes, inputs, {}};
  for (const auto& shape : outputs) forward.op.outputs.push_back({DType::f64, shape});
  forward = in_double(forward);
  Operands operands{values, {}};
  for (const TensorType& type : forward.op.outputs) {
    operands.outputs.emplace_back(static_cast<size_t>(type.elements()), kNaN);
  }
  return run_case(*make_reference_device(), forward, operands).outputs;
}

/// Puts `value` into the entries of scores [.., S, S] above the diagonal.
void fill_masked(std::vector<double>& scores, int64_t length, double value) {
  for (size_t i = 0; i < scores.size(); ++i) {
    const int64_t element = static_cast<int64_t>(i);
    if (element % length > element / length % length) scores[i] = value;
  }
}

using Fix = std::function<void(const TestCase&, Operands&, uint64_t seed)>;

void fix_tokens(const TestCase& test, Operands& operands, uint64_t seed, size_t input, int64_t shard_rows) {
  const int64_t rows = shard_rows * test.context.tensor_size;
  operands.inputs[input] = ids(seed, test.op.inputs[input].elements(), rows, false);
}

void fix_targets(const TestCase& test, Operands& operands, uint64_t seed) {
  operands.inputs[1] = ids(seed, test.op.inputs[1].elements(), test.op.attributes.vocabulary, true);
  for (double& logit : operands.inputs[0]) logit = round_to(test.op.inputs[0].dtype, 3 * logit);
}

/// Reports of all ranks of the group: this rank's from its logits, the others' from logits of their own.
void fix_stats(const TestCase& test, Operands& operands, uint64_t seed) {
  fix_targets(test, operands, seed);
  const int64_t ranks = test.context.tensor_size, rows = test.op.inputs[0].shape[0];
  std::vector<double>& stats = operands.inputs[2];
  stats.clear();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    TestCase other = test;
    other.context.tensor_rank = static_cast<int32_t>(rank);
    std::vector<std::vector<double>> values{operands.inputs[0], operands.inputs[1]};
    if (rank != test.context.tensor_rank) values[0] = normal_values(seed, 50 + rank, test.op.inputs[0].elements(), 3);
    const auto part =
        outputs_of(other, OpKind::cross_entropy_stats, {test.op.inputs[0], test.op.inputs[1]}, values, {{rows, 3}})[0];
    stats.insert(stats.end(), part.begin(), part.end());
  }
}

/// Probabilities of softmax over random scores, in input `input`.
void fix_probabilities(const TestCase& test, Operands& operands, size_t input) {
  operands.inputs[input] = outputs_of(test, OpKind::attention_softmax, {test.op.inputs[input]},
                                      {operands.inputs[input]}, {test.op.inputs[input].shape})[0];
}

/// o and lse of this step, which goes on from random ones if it is not the first: the log-sum-exp bounds its scores.
void fix_ring_results(const TestCase& test, Operands& operands, uint64_t) {
  std::vector<TensorType> inputs{test.op.inputs[1], test.op.inputs[2]};
  std::vector<std::vector<double>> values{operands.inputs[1], operands.inputs[2]};
  if (test.op.attributes.ring_step > 0) {
    for (const size_t i : {3, 4}) {
      inputs.push_back(test.op.inputs[i]);
      values.push_back(operands.inputs[i]);
    }
  }
  const auto y =
      outputs_of(test, OpKind::ring_attention, inputs, values, {test.op.inputs[3].shape, test.op.inputs[4].shape});
  operands.inputs[3] = y[0];
  operands.inputs[4] = y[1];
}

void fix_moments(const TestCase& test, Operands& operands, uint64_t) {
  operands.inputs[1] = test.metrics;
  for (double& value : operands.outputs[2]) value *= value;  // the second moment is not negative
  if (operands.outputs.size() > 3) operands.outputs[0] = operands.outputs[3];
}

const std::map<OpKind, Fix>& fixes() {
  static const std::map<OpKind, Fix> table = {
      {OpKind::embedding,
       [](const TestCase& t, Operands& o, uint64_t seed) { fix_tokens(t, o, seed, 0, t.op.inputs[1].shape[0]); }},
      {OpKind::embedding_backward,
       [](const TestCase& t, Operands& o, uint64_t seed) { fix_tokens(t, o, seed, 1, t.op.outputs[0].shape[0]); }},
      {OpKind::rms_norm_backward,
       [](const TestCase& t, Operands& o, uint64_t) {
         o.inputs[3] = outputs_of(t, OpKind::rms_norm, {t.op.inputs[1], t.op.inputs[2]}, {o.inputs[1], o.inputs[2]},
                                  {t.op.inputs[1].shape, t.op.inputs[3].shape})[1];
       }},
      {OpKind::layer_norm_backward,
       [](const TestCase& t, Operands& o, uint64_t) {
         const auto y = outputs_of(t, OpKind::layer_norm, {t.op.inputs[1], t.op.inputs[2], t.op.inputs[2]},
                                   {o.inputs[1], o.inputs[2], o.inputs[2]},
                                   {t.op.inputs[1].shape, t.op.inputs[3].shape, t.op.inputs[4].shape});
         o.inputs[3] = y[1];
         o.inputs[4] = y[2];
       }},
      {OpKind::qk_norm_backward,
       [](const TestCase& t, Operands& o, uint64_t) {
         o.inputs[4] =
             outputs_of(t, OpKind::qk_norm, {t.op.inputs[1], t.op.inputs[2], t.op.inputs[3]},
                        {o.inputs[1], o.inputs[2], o.inputs[3]}, {t.op.inputs[1].shape, t.op.inputs[4].shape})[1];
       }},
      {OpKind::rope,
       [](const TestCase& t, Operands& o, uint64_t) {
         o.inputs[1] = outputs_of(t, OpKind::rope_table, {}, {}, {t.op.inputs[1].shape})[0];
       }},
      {OpKind::rope_backward,
       [](const TestCase& t, Operands& o, uint64_t) {
         o.inputs[1] = outputs_of(t, OpKind::rope_table, {}, {}, {t.op.inputs[1].shape})[0];
       }},
      {OpKind::attention_backward,
       [](const TestCase& t, Operands& o, uint64_t) {
         const auto y = outputs_of(t, OpKind::attention, {t.op.inputs[1]}, {o.inputs[1]},
                                   {t.op.inputs[2].shape, t.op.inputs[3].shape});
         o.inputs[2] = y[0];
         o.inputs[3] = y[1];
       }},
      {OpKind::ring_attention_backward, fix_ring_results},
      {OpKind::attention_softmax,
       [](const TestCase& t, Operands& o, uint64_t) { fill_masked(o.inputs[0], t.op.inputs[0].shape[3], kNaN); }},
      {OpKind::attention_context, [](const TestCase& t, Operands& o, uint64_t) { fix_probabilities(t, o, 0); }},
      {OpKind::attention_scores_backward,
       [](const TestCase& t, Operands& o, uint64_t) { fill_masked(o.inputs[0], t.op.inputs[0].shape[3], 0); }},
      {OpKind::attention_softmax_backward,
       [](const TestCase& t, Operands& o, uint64_t) {
         fill_masked(o.inputs[0], t.op.inputs[0].shape[3], kNaN);
         fix_probabilities(t, o, 1);
       }},
      {OpKind::attention_context_backward,
       [](const TestCase& t, Operands& o, uint64_t) { fix_probabilities(t, o, 1); }},
      {OpKind::cross_entropy_stats, fix_targets},
      {OpKind::cross_entropy_backward, fix_stats},
      {OpKind::cross_entropy_loss, fix_stats},
      {OpKind::cross_entropy, fix_targets},
      {OpKind::clip_scale, [](const TestCase& t, Operands& o, uint64_t) { o.inputs[0] = o.outputs[0] = t.metrics; }},
      {OpKind::adamw, fix_moments},
  };
  return table;
}

}  // namespace

Operands random_operands(const TestCase& test, uint64_t seed) {
  Operands operands;
  for (size_t i = 0; i < test.op.inputs.size(); ++i) {
    operands.inputs.push_back(normal_values(seed, i, test.op.inputs[i].elements()));
  }
  for (size_t i = 0; i < test.op.outputs.size(); ++i) {
    const int64_t count = test.op.outputs[i].elements();
    const bool accumulates = (info(test.op.kind).accumulating_outputs >> i & 1) != 0;
    operands.outputs.push_back(accumulates ? normal_values(seed, 100 + i, count)
                                           : std::vector<double>(static_cast<size_t>(count), kNaN));
  }
  round_all(test.op.inputs, operands.inputs);
  if (const auto fix = fixes().find(test.op.kind); fix != fixes().end()) fix->second(test, operands, seed);
  fix_expert_operands(test, operands, seed);
  round_all(test.op.inputs, operands.inputs);
  round_all(test.op.outputs, operands.outputs);
  return operands;
}

}  // namespace foresail::kernel_tests
