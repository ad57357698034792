// The cases: for every kind of operator the shapes, places and attributes at which kernels tend to go wrong. Widths are
// chosen around vector lengths (odd, one less, one more), rows so that thread ranges are uneven.
#include <cmath>
#include <limits>

#include "core/error.h"
#include "tests/kernels/attention_cases.h"
#include "tests/kernels/cases.h"
#include "tests/kernels/expert_cases.h"

namespace foresail::kernel_tests {
namespace {

void add_embedding(Cases& cases) {
  struct Place {
    int64_t rows, vocabulary, hidden;
    int32_t tensor_rank, tensor_size;
  };
  for (const Place& p : {Place{7, 11, 5, 0, 1}, Place{33, 64, 67, 1, 3}, Place{1, 3, 1, 2, 4}}) {
    const std::string variant = text({p.rows, p.vocabulary, p.hidden}) + "_rank" + std::to_string(p.tensor_rank);
    place(cases.add(OpKind::embedding, variant, {}, {cases.ids(p.rows), cases.real({p.vocabulary, p.hidden})},
                    {cases.real({p.rows, p.hidden})}),
          p.tensor_rank, p.tensor_size);
    place(cases.add(OpKind::embedding_backward, variant, {}, {cases.real({p.rows, p.hidden}), cases.ids(p.rows)},
                    {cases.real({p.vocabulary, p.hidden})}),
          p.tensor_rank, p.tensor_size);
  }
  for (const auto& [sequences, length, table_rows, hidden] : {std::array<int64_t, 4>{2, 5, 9, 3}, {3, 16, 16, 67}}) {
    OpAttributes a;
    a.sequence_length = length;
    const int64_t rows = sequences * length;
    const std::string variant = text({sequences, length, table_rows, hidden});
    cases.add(OpKind::position_embedding, variant, a, {cases.real({rows, hidden}), cases.real({table_rows, hidden})},
              {cases.real({rows, hidden})});
    cases.add(OpKind::position_embedding_backward, variant, a, {cases.real({rows, hidden})},
              {cases.real({table_rows, hidden})});
  }
}

void add_norms(Cases& cases) {
  for (const auto& [rows, width, epsilon] : {std::tuple<int64_t, int64_t, double>{3, 5, 1e-5},
                                             {1, 1, 0.5},
                                             {33, 67, 1e-6},
                                             {10, 128, 1e-5},
                                             {5, 1030, 1e-5}}) {
    OpAttributes a;
    a.epsilon = epsilon;
    const std::string variant = text({rows, width});
    const TensorType x = cases.real({rows, width}), w = cases.real({width}), stat = cases.real({rows});
    cases.add(OpKind::rms_norm, variant, a, {x, w}, {x, stat});
    cases.add(OpKind::rms_norm_backward, variant, a, {x, x, w, stat}, {x, w});
    cases.add(OpKind::rms_norm_backward, variant + "_addend", a, {x, x, w, stat, x}, {x, w});
    cases.add(OpKind::add_rms_norm, variant, a, {x, x, w}, {x, x, stat});
    cases.add(OpKind::layer_norm, variant, a, {x, w, w}, {x, stat, stat});
    cases.add(OpKind::layer_norm_backward, variant, a, {x, x, w, stat, stat}, {x, w, w});
    cases.add(OpKind::layer_norm_backward, variant + "_addend", a, {x, x, w, stat, stat, x}, {x, w, w});
    cases.add(OpKind::add_layer_norm, variant, a, {x, x, w, w}, {x, x, stat, stat});
  }
}

void add_products(Cases& cases) {
  for (const auto& [rows, in, out] : {std::array<int64_t, 3>{3, 5, 4}, {1, 1, 1}, {17, 33, 65}, {64, 96, 130}}) {
    const std::string variant = text({rows, in, out});
    const TensorType x = cases.real({rows, in}), y = cases.real({rows, out}), w = cases.real({out, in}),
                     b = cases.real({out});
    cases.add(OpKind::linear, variant, {}, {x, w}, {y});
    cases.add(OpKind::linear, variant + "_bias", {}, {x, w, b}, {y});
    cases.add(OpKind::linear_backward_input, variant, {}, {y, w}, {x});
    cases.add(OpKind::linear_backward_weight, variant, {}, {y, x}, {w});
    cases.add(OpKind::bias_backward, variant, {}, {y}, {b});
    cases.add(OpKind::bias_add, variant, {}, {y, b}, {y});
  }
}

/// Sums and gradients in another type than the run's: f64 beside f32 (the reference device's tests have its own).
void add_wide_sums(Cases& cases) {
  if (cases.dtype != DType::f32) return;
  for (const int64_t n : {1, 259, 8203}) {
    const TensorType x = cases.real({n}), wide = cases.exact(n), metrics = cases.exact(6);
    const std::string variant = text({n});
    cases.add(OpKind::add, variant + "_wide", {}, {wide, wide}, {wide});
    cases.add(OpKind::add, variant + "_to_wide", {}, {wide, x}, {wide});
    cases.add(OpKind::add, variant + "_of_wide", {}, {x, wide}, {x});
    cases.add(OpKind::squared_norm, variant + "_wide", {}, {wide}, {cases.exact(1)});
    OpAttributes a;
    a.decay = true;
    cases.add(OpKind::adamw, variant + "_wide", a, {wide, metrics}, {x, x, x}).metrics = {0, 9, 0, 0, 3, 0.75};
    cases.add(OpKind::adamw, variant + "_wide_master", {}, {wide, metrics}, {x, x, x, x}).metrics = {0, 1, 0, 0, 1, 1};
  }
}

void add_element_wise(Cases& cases) {
  for (const Shape& shape : {Shape{3, 5}, Shape{1, 1}, Shape{17, 67}, Shape{9, 256}}) {
    const TensorType x = cases.real(shape), bias = cases.real({shape[1]}),
                     gate_up = cases.real({shape[0], 2 * shape[1]});
    const std::string variant = text(shape);
    cases.add(OpKind::gelu, variant, {}, {x}, {x});
    cases.add(OpKind::gelu_backward, variant, {}, {x, x}, {x});
    cases.add(OpKind::bias_gelu, variant, {}, {x, bias}, {x});
    cases.add(OpKind::bias_gelu_backward, variant, {}, {x, x, bias}, {x});
    cases.add(OpKind::swiglu, variant, {}, {gate_up}, {x});
    cases.add(OpKind::swiglu_backward, variant, {}, {x, gate_up}, {gate_up});
    cases.add(OpKind::add, variant, {}, {x, x}, {x});
    for (const double probability : {0.0, 0.25}) {
      OpAttributes a;
      a.probability = probability;
      a.random_site = 3;
      a.sequence_length = shape[0];
      TestCase& test = cases.add(OpKind::dropout, variant + (probability > 0 ? "_some" : "_none"), a, {x}, {x});
      test.context.first_row = 21;
      test.context.layer = -1;
    }
  }
  OpAttributes a;
  a.probability = 0.4;
  const TensorType scores = cases.real({2, 3, 7, 7});
  TestCase& test = cases.add(OpKind::dropout, "scores", a, {scores}, {scores});
  test.context.first_row = 28;
  place(test, 1, 2);
  a.heads_cut = true;
  TestCase& cut = cases.add(OpKind::dropout, "scores_of_cut_heads", a, {scores}, {scores});
  cut.context.first_row = 14;
  place(cut, 1, 2);
  place_in_context(cut, 2, 3);
}

void add_loss(Cases& cases) {
  struct Place {
    int64_t rows, columns, vocabulary;
    int32_t tensor_rank, tensor_size;
  };
  for (const Place& p : {Place{4, 7, 7, 0, 1}, Place{13, 67, 67, 0, 1}, Place{9, 64, 50, 0, 1}, Place{6, 5, 13, 0, 3},
                         Place{6, 5, 13, 2, 3}, Place{3, 4, 5, 2, 4}, Place{11, 40, 100, 1, 3}}) {
    OpAttributes a;
    a.vocabulary = p.vocabulary;
    const std::string variant = text({p.rows, p.columns, p.vocabulary}) + "_rank" + std::to_string(p.tensor_rank);
    const TensorType logits = cases.real({p.rows, p.columns}), targets = cases.ids(p.rows), loss = cases.exact(1);
    const TensorType stats = cases.real({p.rows, 3}), all_stats = cases.real({p.tensor_size, p.rows, 3});
    const auto add = [&](OpKind kind, std::vector<TensorType> inputs, std::vector<TensorType> outputs) {
      place(cases.add(kind, variant, a, std::move(inputs), std::move(outputs)), p.tensor_rank, p.tensor_size);
    };
    add(OpKind::cross_entropy_stats, {logits, targets}, {stats});
    add(OpKind::cross_entropy_backward, {logits, targets, all_stats}, {logits, loss});
    add(OpKind::cross_entropy_loss, {logits, targets, all_stats}, {loss});
    if (p.tensor_size > 1) continue;
    add(OpKind::cross_entropy, {logits, targets}, {logits, loss});
  }
  OpAttributes a;
  a.vocabulary = 9;  // a group of one may leave out the leading dimension of its stats
  const TensorType logits = cases.real({5, 9}), stats = cases.real({5, 3});
  cases.add(OpKind::cross_entropy_backward, "flat_stats", a, {logits, cases.ids(5), stats}, {logits, cases.exact(1)});
  cases.add(OpKind::cross_entropy_loss, "flat_stats", a, {logits, cases.ids(5), stats}, {cases.exact(1)});
}

void add_clipping(Cases& cases) {
  struct Clip {
    const char* variant;
    double squared_norm, bound, overflow = 0;
  };
  for (const Clip& c :
       {Clip{"clips", 16, 1}, Clip{"below_bound", 0.25, 1}, Clip{"off", 16, 0}, Clip{"zero", 0, 1},
        Clip{"infinite", std::numeric_limits<double>::infinity(), 1},
        Clip{"nan_without_bound", std::numeric_limits<double>::quiet_NaN(), 0}, Clip{"overflow", 16, 1, 3}}) {
    TestCase& test = cases.add(OpKind::clip_scale, c.variant, {}, {cases.exact(6)}, {cases.exact(6)});
    test.metrics = {2.5, c.squared_norm, 0.5, c.overflow, 0, 0};
    test.step.clip_norm = c.bound;
  }
}

void add_optimizer(Cases& cases) {
  add_clipping(cases);
  for (const int64_t n : {1, 7, 259, 4100}) {
    const TensorType range = cases.real({n}), metrics = cases.exact(6);
    const std::string variant = text({n});
    cases.add(OpKind::fill_zero, variant, {}, {}, {range});
    for (const bool decay : {false, true}) {
      OpAttributes a;
      a.decay = decay;
      const std::string name = variant + (decay ? "_decay" : "");
      cases.add(OpKind::adamw, name, a, {range, metrics}, {range, range, range}).metrics = {0, 9, 0, 0, 3, 0.75};
      cases.add(OpKind::adamw, name + "_master", a, {range, metrics}, {range, range, range, range}).metrics = {0, 1, 0,
                                                                                                               0, 1, 1};
    }
    cases.add(OpKind::adamw, variant + "_skipped", {}, {range, metrics}, {range, range, range}).metrics = {
        0, std::numeric_limits<double>::quiet_NaN(), 0, 0, std::numeric_limits<double>::quiet_NaN(), 0};
    for (const CountRule rule : {CountRule::every_tensor_rank, CountRule::tensor_rank_zero, CountRule::first_copy,
                                 CountRule::nobody, CountRule::every_expert_rank}) {
      OpAttributes a;
      a.count_rule = rule;
      const std::string name = variant + "_rule" + std::to_string(static_cast<int>(rule));
      cases.add(OpKind::squared_norm, name, a, {range}, {cases.exact(1)});
      place(cases.add(OpKind::squared_norm, name + "_rank1", a, {range}, {cases.exact(1)}), 1, 2);
      cases.add(OpKind::squared_norm, name + "_data1", a, {range}, {cases.exact(1)}).context.replica_rank = 1;
    }
  }
}

}  // namespace

std::vector<TestCase> all_test_cases(DType dtype) {
  Cases cases{dtype, {}};
  add_embedding(cases);
  add_norms(cases);
  add_products(cases);
  add_element_wise(cases);
  add_wide_sums(cases);
  add_loss(cases);
  add_optimizer(cases);
  for (const auto more : {attention_test_cases, expert_test_cases}) {
    for (TestCase& test : more(dtype)) cases.list.push_back(std::move(test));
  }
  return cases.list;
}

}  // namespace foresail::kernel_tests
