#include "tests/kernels/expert_cases.h"

#include <algorithm>
#include <limits>

#include "core/philox.h"

namespace foresail::kernel_tests {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Router {
  const char* variant;
  int64_t sequences, length, experts, choices;
  RouterScoring scoring = RouterScoring::softmax;
  bool normalise = true, bias = false;
  double scale = 1;
  int64_t groups = 1, groups_per_token = 1;
  GroupScore group_score = GroupScore::best_expert;

  OpAttributes attributes() const {
    OpAttributes a;
    a.experts = experts;
    a.experts_per_token = choices;
    a.expert_groups = groups;
    a.groups_per_token = groups_per_token;
    a.scoring = scoring;
    a.group_score = group_score;
    a.normalise_gates = normalise;
    a.gate_scale = scale;
    a.sequences = sequences;
    a.sequence_length = length;
    a.balance_coefficient = 0.7;
    a.z_coefficient = 0.3;
    return a;
  }
};

constexpr RouterScoring kSigmoid = RouterScoring::sigmoid;
constexpr RouterScoring kSoftmax = RouterScoring::softmax;
constexpr GroupScore kBestTwo = GroupScore::sum_of_best_two;

constexpr Router kRouters[] = {
    {"one_row", 1, 1, 3, 1},
    {"mixtral", 2, 9, 8, 2},
    {"not_normalised", 3, 11, 13, 4, kSoftmax, false, false, 2.5},
    {"all_experts", 1, 5, 7, 7},
    {"groups", 3, 7, 20, 3, kSoftmax, false, false, 16, 5, 2},
    {"sigmoid", 2, 6, 19, 3, kSigmoid, false},
    {"deepseek", 1, 19, 32, 6, kSigmoid, true, true, 2.5, 8, 3, kBestTwo},
    {"groups_of_one", 2, 3, 5, 2, kSigmoid, true, true, 1, 5, 3, kBestTwo},
};

/// Collects cases of one element type.
struct Cases {
  DType dtype;
  std::vector<TestCase> list = {};

  TensorType real(std::vector<int64_t> shape) const { return {dtype, std::move(shape)}; }
  static TensorType ids(std::vector<int64_t> shape) { return {DType::i32, std::move(shape)}; }
  static TensorType exact() { return {DType::f64, {1}}; }

  TestCase& add(OpKind kind, const std::string& variant, const OpAttributes& attributes, std::vector<TensorType> inputs,
                std::vector<TensorType> outputs) {
    TestCase test;
    test.name = std::string(name_of(kind)) + "/" + variant;
    test.op = {kind, attributes, std::move(inputs), std::move(outputs)};
    test.step.inverse_valid_tokens = 1.0 / 37;
    list.push_back(std::move(test));
    return list.back();
  }
};

void add_router(Cases& cases, const Router& r) {
  const OpAttributes a = r.attributes();
  const int64_t rows = r.sequences * r.length;
  const TensorType logits = cases.real({rows, r.experts}), index = Cases::ids({rows, r.choices});
  const TensorType gate = cases.real({rows, r.choices}), targets = Cases::ids({rows});
  const TensorType stats = cases.real({r.sequences, 3, r.experts});
  std::vector<TensorType> inputs{logits};
  if (r.bias) inputs.push_back(cases.real({r.experts}));
  cases.add(OpKind::moe_route, r.variant, a, inputs, {index, gate});
  cases.add(OpKind::moe_route_backward, r.variant, a, {gate, logits, index}, {logits});
  cases.add(OpKind::moe_statistics, r.variant, a, {logits, index, targets}, {stats});
  cases.add(OpKind::moe_balance_loss, r.variant, a, {logits, targets, stats}, {Cases::exact()});
  cases.add(OpKind::moe_balance_backward, r.variant, a, {logits, targets, stats}, {logits});
}

/// Rows of ranks that share the sequences of a micro-batch.
void add_shares(Cases& cases) {
  struct Share {
    const char* variant;
    int64_t rows, degree;
    bool rows_cut;
    int32_t context_rank, tensor_rank;
  };
  for (const Share& s : {Share{"cut", 4, 1, true, 0, 2}, Share{"cut_over_sequences", 12, 1, true, 0, 1},
                         Share{"zigzag", 24, 3, false, 2, 0}, Share{"zigzag_cut", 8, 2, true, 1, 2}}) {
    OpAttributes a = Router{"", 3, 8, 11, 3, kSigmoid}.attributes();
    a.context_parallel = s.degree;
    a.rows_cut = s.rows_cut;
    const TensorType logits = cases.real({s.rows, 11}), targets = Cases::ids({s.rows}), stats = cases.real({3, 3, 11});
    const auto place = [&](TestCase& test) {
      test.context.tensor_rank = s.tensor_rank;
      test.context.tensor_size = static_cast<int32_t>(24 / s.rows);
      test.context.context_rank = s.context_rank;
      test.context.context_size = static_cast<int32_t>(s.degree);
    };
    place(cases.add(OpKind::moe_statistics, s.variant, a, {logits, Cases::ids({s.rows, 3}), targets}, {stats}));
    place(cases.add(OpKind::moe_balance_loss, s.variant, a, {logits, targets, stats}, {Cases::exact()}));
    place(cases.add(OpKind::moe_balance_backward, s.variant, a, {logits, targets, stats}, {logits}));
  }
}

struct Buffer {
  const char* variant;
  int64_t rows, columns, experts, choices, ranks, capacity;
};

/// `capacity` rows for every rank: enough, or fewer than go there.
constexpr Buffer kBuffers[] = {
    {"one_row", 1, 5, 4, 2, 1, 2},    {"one_rank", 13, 33, 5, 3, 1, 39}, {"ample", 9, 7, 6, 2, 3, 18},
    {"overflow", 21, 67, 8, 2, 4, 7}, {"hardly_any", 10, 3, 4, 1, 2, 1}, {"many_experts", 8, 16, 40, 4, 5, 9},
};

void add_buffer(Cases& cases, const Buffer& b) {
  OpAttributes a;
  a.experts = b.experts;
  a.experts_per_token = b.choices;
  a.expert_ranks = b.ranks;
  a.expert_rows = b.ranks * b.capacity;
  const TensorType x = cases.real({b.rows, b.columns}), buffer = cases.real({a.expert_rows, b.columns});
  const TensorType slot = Cases::ids({b.rows, b.choices}), gate = cases.real({b.rows, b.choices});
  cases.add(OpKind::moe_dispatch, b.variant, a, {x, slot}, {buffer, slot, Cases::ids({b.experts}), Cases::exact()});
  cases.add(OpKind::moe_dispatch_backward, b.variant, a, {buffer, slot}, {x});
  cases.add(OpKind::moe_combine, b.variant, a, {buffer, slot, gate}, {x});
  cases.add(OpKind::moe_combine_backward, b.variant, a, {x, buffer, slot, gate}, {buffer, gate});
}

struct Product {
  const char* variant;
  int64_t capacity, sources, experts, inner, outer;
};

constexpr Product kProducts[] = {
    {"one_row", 1, 1, 1, 3, 2}, {"one_source", 23, 1, 4, 33, 17}, {"sources", 19, 3, 5, 16, 65},
    {"no_rows", 0, 2, 3, 4, 5}, {"wide", 65, 2, 2, 130, 67},
};

void add_products(Cases& cases, const Product& p) {
  const int64_t rows = p.capacity * p.sources;
  const TensorType x = cases.real({rows, p.inner}), y = cases.real({rows, p.outer});
  const TensorType w = cases.real({p.experts, p.outer, p.inner}), counts = Cases::ids({p.sources * p.experts});
  OpAttributes a;
  a.routed_rows = (rows + 1) / 2;
  cases.add(OpKind::expert_linear, p.variant, a, {x, w, counts}, {y});
  cases.add(OpKind::expert_linear_backward_input, p.variant, a, {y, w, counts}, {x});
  cases.add(OpKind::expert_linear_backward_weight, p.variant, a, {y, x, counts}, {w});
}

/// Runs one operator of the same place on the reference device.
std::vector<std::vector<double>> evaluate(const TestCase& test, OpKind kind, std::vector<TensorType> inputs,
                                          const std::vector<std::vector<double>>& values,
                                          std::vector<TensorType> outputs) {
  TestCase other = test;
  other.op = {kind, test.op.attributes, std::move(inputs), std::move(outputs)};
  Operands operands{values, {}};
  for (const TensorType& type : other.op.outputs) operands.outputs.emplace_back(type.elements(), 0.0);
  return run_case(*make_reference_device(), in_double(other), operands).outputs;
}

/// Experts that a router chooses for random logits; expert 1 is popular, expert 2 is not.
std::vector<double> random_index(const TestCase& test, int64_t rows, uint64_t seed) {
  const int64_t experts = test.op.attributes.experts, choices = test.op.attributes.experts_per_token;
  std::vector<double> logits(static_cast<size_t>(rows * experts));
  for (size_t i = 0; i < logits.size(); ++i) {
    const int64_t expert = static_cast<int64_t>(i) % experts;
    const double lean = expert == 1 ? 2 : expert == 2 ? -20 : 0;
    logits[i] = random_normal(seed, 600, i) + lean;
  }
  return evaluate(test, OpKind::moe_route, {{DType::f64, {rows, experts}}}, {logits},
                  {Cases::ids({rows, choices}), {DType::f64, {rows, choices}}})[0];
}

std::vector<double> random_targets(int64_t rows, uint64_t seed) {
  std::vector<double> targets(static_cast<size_t>(rows));
  for (size_t i = 0; i < targets.size(); ++i) targets[i] = random_bits(seed, 601, i) % 4 == 0 ? -1 : 5;
  return targets;
}

/// Statistics of whole sequences as they might be.
void fill_stats(const TestCase& test, std::vector<double>& stats, uint64_t seed) {
  const OpAttributes& a = test.op.attributes;
  const auto rows = static_cast<uint64_t>(a.sequence_length * a.context_parallel);
  for (size_t i = 0; i < stats.size(); ++i) {
    const int64_t element = static_cast<int64_t>(i) % (3 * a.experts);
    stats[i] = static_cast<double>(random_bits(seed, 602, i) % (rows + 1));
    if (element > 2 * a.experts) stats[i] = element == 2 * a.experts + 1 ? static_cast<double>(rows) : 0;
  }
}

void fill_rows(std::vector<double>& values, int64_t columns, int64_t row, double value) {
  std::fill_n(values.begin() + row * columns, columns, value);
}

/// Slots of a dispatch of random choices; rows of the buffer that nobody has become NaN.
void fix_slots(const TestCase& test, Operands& operands, uint64_t seed, size_t slot_input, size_t buffer_input) {
  const OpAttributes& a = test.op.attributes;
  const TensorType &slot = test.op.inputs[slot_input], x{DType::f64, {slot.shape[0], 1}};
  std::vector<double> ones(static_cast<size_t>(slot.shape[0]), 1);
  operands.inputs[slot_input] =
      evaluate(test, OpKind::moe_dispatch, {x, slot}, {ones, random_index(test, slot.shape[0], seed)},
               {{DType::f64, {a.expert_rows, 1}}, slot, Cases::ids({a.experts}), Cases::exact()})[1];
  std::vector<bool> used(static_cast<size_t>(a.expert_rows));
  for (const double row : operands.inputs[slot_input]) {
    if (row >= 0) used[static_cast<size_t>(row)] = true;
  }
  for (int64_t row = 0; row < a.expert_rows; ++row) {
    if (used[static_cast<size_t>(row)]) continue;
    fill_rows(operands.inputs[buffer_input], test.op.inputs[buffer_input].shape[1], row, kNaN);
  }
}

/// Runs that fit, every third expert without rows; rows behind them become NaN in inputs [0, buffers).
void fix_counts(const TestCase& test, Operands& operands, uint64_t seed, size_t buffers) {
  const TensorType& weight = buffers == 2 ? test.op.outputs[0] : test.op.inputs[1];
  const int64_t experts = weight.shape[0], sources = test.op.inputs[2].shape[0] / experts;
  const int64_t capacity = test.op.inputs[0].shape[0] / sources;
  for (int64_t source = 0; source < sources; ++source) {
    int64_t used = 0;
    for (int64_t e = 0; e < experts; ++e) {
      const int64_t i = source * experts + e, most = 2 * capacity / experts + 1;
      int64_t count = static_cast<int64_t>(random_bits(seed, 603, static_cast<uint64_t>(i)) % (most + 1));
      if (i % 3 == 2) count = 0;
      count = std::min(count, capacity - used);
      operands.inputs[2][static_cast<size_t>(i)] = static_cast<double>(count);
      used += count;
    }
    for (int64_t row = source * capacity + used; row < (source + 1) * capacity; ++row) {
      for (size_t b = 0; b < buffers; ++b) fill_rows(operands.inputs[b], test.op.inputs[b].shape[1], row, kNaN);
    }
  }
}

}  // namespace

std::vector<TestCase> expert_test_cases(DType dtype) {
  Cases cases{dtype};
  for (const Router& router : kRouters) {
    if (router.experts > 1) add_router(cases, router);
  }
  add_shares(cases);
  for (const Buffer& buffer : kBuffers) add_buffer(cases, buffer);
  for (const Product& product : kProducts) add_products(cases, product);
  return cases.list;
}

std::vector<TestCase> large_expert_cases() {
  Cases cases{DType::f32};
  add_router(cases, {"large_softmax", 3, 70, 37, 4, kSoftmax, false});
  add_router(cases, {"large_normalised", 2, 300, 130, 8});
  add_router(cases, {"large_sigmoid", 3, 171, 72, 6, kSigmoid, true, true, 2.5, 8, 4, kBestTwo});
  add_buffer(cases, {"large", 210, 131, 12, 4, 3, 300});
  add_buffer(cases, {"large_overflow", 210, 131, 12, 4, 3, 150});
  add_products(cases, {"large", 139, 3, 6, 131, 147});
  add_products(cases, {"large_one_expert", 210, 1, 1, 147, 131});
  return cases.list;
}

void fix_expert_operands(const TestCase& test, Operands& operands, uint64_t seed) {
  const int64_t rows = test.op.inputs.empty() ? 0 : test.op.inputs[0].shape[0];
  switch (test.op.kind) {
    case OpKind::moe_route_backward: operands.inputs[2] = random_index(test, rows, seed); return;
    case OpKind::moe_statistics:
      operands.inputs[1] = random_index(test, rows, seed);
      operands.inputs[2] = random_targets(rows, seed);
      return;
    case OpKind::moe_balance_loss:
    case OpKind::moe_balance_backward:
      operands.inputs[1] = random_targets(rows, seed);
      fill_stats(test, operands.inputs[2], seed);
      return;
    case OpKind::moe_dispatch: operands.inputs[1] = random_index(test, rows, seed); return;
    case OpKind::moe_dispatch_backward:
    case OpKind::moe_combine: fix_slots(test, operands, seed, 1, 0); return;
    case OpKind::moe_combine_backward: fix_slots(test, operands, seed, 2, 1); return;
    case OpKind::expert_linear:
    case OpKind::expert_linear_backward_input: fix_counts(test, operands, seed, 1); return;
    case OpKind::expert_linear_backward_weight: fix_counts(test, operands, seed, 2); return;
    default: return;
  }
}

}  // namespace foresail::kernel_tests
