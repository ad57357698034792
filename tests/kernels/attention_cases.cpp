#include "tests/kernels/attention_cases.h"

#include <array>

#include "tests/kernels/cases.h"

namespace foresail::kernel_tests {
namespace {

/// Sizes of one attention case.
struct Heads {
  const char* variant;
  int64_t sequences, length, heads, kv_heads, head_dim;
  int64_t window = 0;
  double probability = 0;
  int32_t tensor_rank = 0, tensor_size = 1;
  int64_t value_dim = 0;

  OpAttributes attributes() const {
    OpAttributes a;
    a.sequence_length = length;
    a.heads = heads;
    a.kv_heads = kv_heads;
    a.head_dim = head_dim;
    a.value_dim = value_dim;
    a.scale = 1 / std::sqrt(static_cast<double>(head_dim));
    a.window = window;
    a.probability = probability;
    a.random_site = 1;
    a.epsilon = 1e-6;
    a.rope_theta = 10000;
    return a;
  }
  int64_t rows() const { return sequences * length; }
  int64_t width() const { return attributes().qkv_columns(); }
};

constexpr Heads kHeads[] = {
    {"plain", 2, 5, 2, 2, 4},
    {"one_token", 3, 1, 2, 1, 6},
    {"grouped", 1, 7, 6, 2, 6},
    {"single_kv_head", 2, 19, 3, 1, 10},
    {"window", 2, 9, 2, 1, 4, 3},
    {"window_of_one", 1, 4, 2, 2, 4, 1},
    {"window_beyond_sequence", 1, 6, 2, 2, 8, 100},
    {"dropout", 2, 6, 2, 1, 4, 0, 0.3, 1, 3},
    {"dropout_window", 2, 17, 4, 2, 6, 5, 0.1},
    {"long", 1, 130, 2, 1, 16},
    {"wide_head", 1, 33, 1, 1, 64},
    {"narrow_values", 2, 9, 3, 3, 12, 0, 0, 0, 1, 8},
    {"wide_values", 1, 21, 4, 2, 6, 0, 0.2, 0, 1, 19},
    {"values_window", 2, 18, 2, 1, 20, 5, 0, 0, 1, 3},
};

void add_heads(Cases& cases) {
  for (const Heads& h : kHeads) {
    const OpAttributes a = h.attributes();
    const TensorType qkv = cases.real({h.rows(), h.width()}), o = cases.real({h.rows(), a.o_columns()});
    const TensorType lse = cases.real({h.sequences, h.heads, h.length});
    const TensorType scores = cases.real({h.sequences, h.heads, h.length, h.length});
    const TensorType table = cases.real({h.length, h.head_dim / 2, 2}), w = cases.real({h.head_dim});
    const TensorType stat = cases.real({h.rows(), h.heads + h.kv_heads});
    const auto add = [&](OpKind kind, std::vector<TensorType> inputs, std::vector<TensorType> outputs) {
      TestCase& test = cases.add(kind, h.variant, a, std::move(inputs), std::move(outputs));
      place(test, h.tensor_rank, h.tensor_size);
      test.context.first_row = 3 * h.rows();
    };
    add(OpKind::attention, {qkv}, {o, lse});
    add(OpKind::attention_backward, {o, qkv, o, lse}, {qkv});
    add(OpKind::attention_scores, {qkv}, {scores});
    add(OpKind::attention_softmax, {scores}, {scores});
    add(OpKind::attention_context, {scores, qkv}, {o});
    add(OpKind::attention_scores_backward, {scores, qkv}, {qkv});
    add(OpKind::attention_softmax_backward, {scores, scores}, {scores});
    add(OpKind::attention_context_backward, {o, scores, qkv}, {scores, qkv});
    if (h.window > 0) continue;  // the window means nothing to the others
    add(OpKind::rope, {qkv, table}, {qkv});
    add(OpKind::rope_backward, {qkv, table}, {qkv});
    add(OpKind::rope_table, {}, {table});
    add(OpKind::qk_norm, {qkv, w, w}, {qkv, stat});
    add(OpKind::qk_norm_backward, {qkv, qkv, w, w, stat}, {qkv, w, w});
  }
}

void add_rope_scalings(Cases& cases) {
  OpAttributes a;
  a.sequence_length = 50;
  a.head_dim = 64;
  a.rope_theta = 500000;
  a.rope_factor = 8;
  a.rope_low_frequency = 1;
  a.rope_high_frequency = 4;
  a.rope_original_positions = 32;
  const TensorType table = cases.real({50, 32, 2});
  a.rope_scaling = RopeScaling::linear;
  cases.add(OpKind::rope_table, "linear", a, {}, {table});
  a.rope_scaling = RopeScaling::llama3;
  cases.add(OpKind::rope_table, "llama3", a, {}, {table});
  a.rope_scaling = RopeScaling::yarn;
  a.rope_magnitude = 1.25;
  a.rope_original_positions = 4096;
  cases.add(OpKind::rope_table, "yarn", a, {}, {table});
  a.rope_dim = 6;
  cases.add(OpKind::rope_table, "yarn_part_of_head", a, {}, {cases.real({50, 3, 2})});
  a.rope_theta = 10;  // both ends of the ramp in one place
  a.rope_original_positions = 7;
  cases.add(OpKind::rope_table, "yarn_step", a, {}, {cases.real({50, 3, 2})});
}

/// Rows of latent attention: whole sequences, ranks of a context, ranks that share the rows of a sequence.
void add_latent(Cases& cases) {
  struct Latent {
    const char* variant;
    int64_t rows, length, degree, heads, nope, rope, value;
    bool rows_cut = false;
    int32_t context_rank = 0, tensor_rank = 0;
  };
  for (const Latent& l :
       {Latent{"small", 6, 3, 1, 2, 3, 2, 4}, Latent{"one_head", 5, 5, 1, 1, 4, 6, 3},
        Latent{"wide", 66, 33, 1, 3, 17, 34, 19}, Latent{"wider_than_vectors", 7, 7, 1, 2, 32, 64, 33},
        Latent{"nothing_but_rotated", 8, 4, 1, 2, 0, 4, 4}, Latent{"zigzag", 12, 6, 2, 2, 3, 4, 5, false, 1, 0},
        Latent{"cut", 9, 6, 1, 2, 3, 4, 5, true, 0, 1}}) {
    OpAttributes a;
    a.sequence_length = l.length;
    a.context_parallel = l.degree;
    a.rows_cut = l.rows_cut;
    a.heads = a.kv_heads = l.heads;
    a.head_dim = l.nope + l.rope;
    a.rope_dim = l.rope;
    a.value_dim = l.value;
    a.rope_theta = 1000;
    const TensorType q = cases.real({l.rows, a.q_columns()}), kv = cases.real({l.rows, l.heads * (l.nope + l.value)});
    const TensorType k_rope = cases.real({l.rows, l.rope}), qkv = cases.real({l.rows, a.qkv_columns()});
    const TensorType table = cases.real({l.length * l.degree, l.rope / 2, 2});
    const auto add = [&](OpKind kind, std::vector<TensorType> inputs, std::vector<TensorType> outputs) {
      TestCase& test = cases.add(kind, l.variant, a, std::move(inputs), std::move(outputs));
      place(test, l.tensor_rank, 4);
      place_in_context(test, l.context_rank, static_cast<int32_t>(l.degree));
    };
    add(OpKind::latent_join, {q, kv, k_rope, table}, {qkv});
    add(OpKind::latent_join_backward, {qkv, table}, {q, kv, k_rope});
  }
}

/// Rows of context-parallel ranks and of ranks that share the rows of a sequence.
void add_cut_rows(Cases& cases) {
  struct Cut {
    const char* variant;
    int64_t rows, length, degree;
    bool rows_cut;
    int32_t context_rank, tensor_rank;
  };
  for (const Cut& c :
       {Cut{"zigzag", 12, 6, 2, false, 1, 0}, Cut{"zigzag_of_3", 8, 8, 3, false, 2, 0}, Cut{"cut", 9, 6, 1, true, 0, 1},
        Cut{"part_of_sequence", 2, 8, 1, true, 0, 3}, Cut{"zigzag_cut", 7, 4, 2, true, 1, 2}}) {
    OpAttributes a;
    a.sequence_length = c.length;
    a.context_parallel = c.degree;
    a.rows_cut = c.rows_cut;
    a.heads = 2;
    a.kv_heads = 1;
    a.head_dim = 6;
    a.rope_theta = 1000;
    OpAttributes dropping = a;
    dropping.probability = 0.3;
    const int64_t whole = c.length * c.degree;
    const TensorType x = cases.real({c.rows, 5}), qkv = cases.real({c.rows, 24}), table = cases.real({whole + 1, 5});
    const TensorType angles = cases.real({whole, 3, 2});
    const auto add = [&](OpKind kind, const OpAttributes& attributes, std::vector<TensorType> inputs,
                         std::vector<TensorType> outputs) {
      TestCase& test = cases.add(kind, c.variant, attributes, std::move(inputs), std::move(outputs));
      place(test, c.tensor_rank, 4);
      place_in_context(test, c.context_rank, static_cast<int32_t>(c.degree));
      test.context.first_row = 2 * whole;
    };
    add(OpKind::position_embedding, a, {x, table}, {x});
    add(OpKind::position_embedding_backward, a, {x}, {table});
    add(OpKind::rope_table, a, {}, {angles});
    add(OpKind::rope, a, {qkv, angles}, {qkv});
    add(OpKind::rope_backward, a, {qkv, angles}, {qkv});
    add(OpKind::dropout, dropping, {x}, {x});
  }
}

void add_rearrangements(Cases& cases) {
  for (const Heads& h : {Heads{"two", 2, 6, 4, 2, 3}, Heads{"wide", 3, 70, 2, 2, 33},
                         Heads{"narrow_values", 2, 6, 4, 2, 7, 0, 0, 0, 1, 3}}) {
    OpAttributes a = h.attributes();
    const TensorType qkv = cases.real({h.rows(), h.width()}), q = cases.real({h.rows(), a.q_columns()});
    const TensorType kv = cases.real({h.rows(), a.kv_columns()});
    cases.add(OpKind::split_qkv, h.variant, a, {qkv}, {q, kv});
    cases.add(OpKind::join_qkv, h.variant, a, {q, kv}, {qkv});
    a.context_parallel = 2;
    const TensorType parts = cases.real({2, h.rows(), h.width() / 2}), whole = cases.real({2 * h.rows(), 7});
    cases.add(OpKind::heads_split, h.variant, a, {qkv}, {parts});
    cases.add(OpKind::heads_merge, h.variant, a, {parts}, {qkv});
    cases.add(OpKind::rows_merge, h.variant, a, {cases.real({2, h.rows(), 7})}, {whole});
    cases.add(OpKind::rows_split, h.variant, a, {whole}, {cases.real({2, h.rows(), 7})});
    a.kv_heads = a.value_dim = 0;
    const TensorType heads = cases.real({2, h.rows(), h.heads * h.head_dim / 2});
    cases.add(OpKind::heads_split, std::string(h.variant) + "_q", a, {q}, {heads});
    cases.add(OpKind::heads_merge, std::string(h.variant) + "_q", a, {heads}, {q});
  }
  OpAttributes a;
  a.sequence_length = 5;
  cases.add(OpKind::rows_merge, "degree_one", a, {cases.real({1, 10, 3})}, {cases.real({10, 3})});
  for (const Shape& shape : {Shape{1}, Shape{17, 67}, Shape{3, 4, 5}}) {
    const TensorType x = cases.real(shape), wide{DType::f64, shape};
    cases.add(OpKind::copy, text(shape), {}, {x}, {x});
    cases.add(OpKind::cast, text(shape) + "_up", {}, {x}, {wide});
    cases.add(OpKind::cast, text(shape) + "_down", {}, {wide}, {x});
  }
}

struct RingStep {
  Heads heads;
  int64_t degree;
  int32_t rank;
  int64_t step;
};

void add_ring_steps(Cases& cases) {
  for (const RingStep& r :
       {RingStep{{"one_rank", 2, 5, 2, 2, 4}, 1, 0, 0}, RingStep{{"first_step", 2, 6, 4, 2, 4}, 2, 1, 0},
        RingStep{{"keys_before", 2, 6, 4, 2, 4}, 3, 2, 1}, RingStep{{"keys_behind", 1, 8, 3, 1, 6}, 4, 1, 2},
        RingStep{{"window", 2, 10, 2, 1, 4, 7}, 3, 1, 1}, RingStep{{"window_spares_all", 1, 10, 2, 1, 4, 3}, 3, 0, 1},
        RingStep{{"dropout", 2, 6, 2, 1, 4, 0, 0.3, 1, 3}, 2, 0, 1}, RingStep{{"long", 1, 150, 2, 1, 16}, 2, 1, 1},
        RingStep{{"long_first_step", 1, 134, 2, 1, 16, 80, 0.1}, 2, 0, 0},
        RingStep{{"narrow_values", 2, 6, 4, 2, 8, 0, 0, 0, 1, 5}, 3, 2, 1},
        RingStep{{"wide_values", 1, 146, 2, 1, 16, 0, 0.1, 0, 1, 34}, 2, 1, 1}}) {
    const Heads& h = r.heads;
    OpAttributes a = h.attributes();
    a.context_parallel = r.degree;
    a.ring_step = r.step;
    const TensorType q = cases.real({h.rows(), a.q_columns()}), o = cases.real({h.rows(), a.o_columns()});
    const TensorType kv = cases.real({h.rows(), a.kv_columns()});
    const TensorType lse = cases.real({h.sequences, h.heads, h.length});
    std::vector<TensorType> forward{q, kv}, backward{o, q, kv, o, lse};
    if (r.step > 0) {
      forward.insert(forward.end(), {o, lse});
      backward.insert(backward.end(), {q, kv});
    }
    const auto put = [&](TestCase& test) {
      place(test, h.tensor_rank, h.tensor_size);
      place_in_context(test, r.rank, static_cast<int32_t>(r.degree));
      test.context.first_row = 3 * h.rows() * r.degree;
    };
    put(cases.add(OpKind::ring_attention, h.variant, a, forward, {o, lse}));
    put(cases.add(OpKind::ring_attention_backward, h.variant, a, backward, {q, kv}));
  }
}

}  // namespace

std::vector<TestCase> attention_test_cases(DType dtype) {
  Cases cases{dtype, {}};
  add_heads(cases);
  add_rope_scalings(cases);
  add_cut_rows(cases);
  add_latent(cases);
  add_rearrangements(cases);
  add_ring_steps(cases);
  return cases.list;
}

}  // namespace foresail::kernel_tests
