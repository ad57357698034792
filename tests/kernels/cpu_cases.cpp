#include "tests/kernels/cpu_cases.h"

#include <cmath>
#include <map>

#include "tests/kernels/expert_cases.h"

namespace foresail::kernel_tests {
namespace {

/// Sizes of one block. 3 x 70 rows; widths leave a rest after vectors of 4, 8 and 16.
constexpr int64_t kSequences = 3, kLength = 70, kRows = kSequences * kLength;
constexpr int64_t kHidden = 131, kFfn = 147, kVocabulary = 211;

TensorType real(std::vector<int64_t> shape) { return {DType::f32, std::move(shape)}; }
TensorType ids(int64_t count) { return {DType::i32, {count}}; }
TensorType exact(int64_t count) { return {DType::f64, {count}}; }

void add(std::vector<TestCase>& cases, const std::string& variant, OpKind kind, const OpAttributes& attributes,
         std::vector<TensorType> inputs, std::vector<TensorType> outputs) {
  TestCase test;
  test.name = std::string(name_of(kind)) + "/large" + variant;
  test.op = {kind, attributes, std::move(inputs), std::move(outputs)};
  test.step.step = 5;
  test.step.seed = 99;
  test.step.learning_rate = 0.01;
  test.step.beta1_power = std::pow(test.step.beta1, 5);
  test.step.beta2_power = std::pow(test.step.beta2, 5);
  test.step.weight_decay = 0.1;
  test.step.inverse_valid_tokens = 1.0 / 190;
  test.metrics = {0, 4, 0, 0, 2, 0.5};
  cases.push_back(std::move(test));
}

void add_rows(std::vector<TestCase>& cases) {
  OpAttributes a;
  a.epsilon = 1e-5;
  a.sequence_length = kLength;
  const auto x = real({kRows, kHidden}), w = real({kHidden}), stat = real({kRows});
  const auto f = real({kRows, kFfn}), gu = real({kRows, 2 * kFfn}), bias = real({kFfn});
  const auto up = real({kFfn, kHidden}), table = real({kVocabulary, kHidden});
  OpAttributes dropping = a;
  dropping.probability = 0.2;
  add(cases, "", OpKind::embedding, a, {ids(kRows), table}, {x});
  add(cases, "", OpKind::embedding_backward, a, {x, ids(kRows)}, {table});
  add(cases, "", OpKind::position_embedding, a, {x, real({99, kHidden})}, {x});
  add(cases, "", OpKind::position_embedding_backward, a, {x}, {real({99, kHidden})});
  add(cases, "", OpKind::rms_norm, a, {x, w}, {x, stat});
  add(cases, "", OpKind::rms_norm_backward, a, {x, x, w, stat}, {x, w});
  add(cases, "_addend", OpKind::rms_norm_backward, a, {x, x, w, stat, x}, {x, w});
  add(cases, "", OpKind::layer_norm, a, {x, w, w}, {x, stat, stat});
  add(cases, "_addend", OpKind::layer_norm_backward, a, {x, x, w, stat, stat, x}, {x, w, w});
  add(cases, "", OpKind::add_rms_norm, a, {x, x, w}, {x, x, stat});
  add(cases, "", OpKind::add_layer_norm, a, {x, x, w, w}, {x, x, stat, stat});
  add(cases, "", OpKind::linear, a, {x, up, bias}, {f});
  add(cases, "", OpKind::linear_backward_input, a, {f, up}, {x});
  add(cases, "", OpKind::linear_backward_weight, a, {f, x}, {up});
  add(cases, "", OpKind::bias_backward, a, {f}, {bias});
  add(cases, "", OpKind::bias_add, a, {f, bias}, {f});
  add(cases, "", OpKind::gelu, a, {f}, {f});
  add(cases, "", OpKind::gelu_backward, a, {f, f}, {f});
  add(cases, "", OpKind::bias_gelu, a, {f, bias}, {f});
  add(cases, "", OpKind::bias_gelu_backward, a, {f, f, bias}, {f});
  add(cases, "", OpKind::swiglu, a, {gu}, {f});
  add(cases, "", OpKind::swiglu_backward, a, {f, gu}, {gu});
  add(cases, "", OpKind::add, a, {f, f}, {f});
  add(cases, "", OpKind::dropout, dropping, {f}, {f});
  // A position beyond 2^34 reaches the second word of the counter within the tensor.
  cases.back().context.first_row = (int64_t{1} << 34) / kFfn - 7;
}

struct Heads {
  const char* variant;
  int64_t sequences, length, heads, kv_heads, head_dim;
  int64_t window = 0;
  double probability = 0;
  int64_t value_dim = 0;
};

/// Around the tile of 64 positions: below, at, one above, several tiles; windows that cut tiles, spare whole tiles, and
/// leave rows of a tile without keys.
constexpr Heads kHeads[] = {
    {"_63", 3, 63, 2, 2, 32},
    {"_64", 2, 64, 3, 1, 48},
    {"_65", 2, 65, 2, 1, 80},
    {"_three_tiles", 2, 150, 4, 2, 24},
    {"_wide_heads", 1, 130, 2, 1, 128},
    {"_window_of_tile", 1, 200, 2, 1, 18, 64},
    {"_window_20", 2, 200, 2, 2, 16, 20},
    {"_window_100", 1, 260, 2, 1, 14, 100},
    {"_dropout", 2, 150, 4, 2, 24, 0, 0.2},
    {"_dropout_window", 1, 200, 2, 1, 16, 33, 0.4},
    {"_latent", 2, 150, 3, 3, 48, 0, 0, 32},
    {"_wide_values", 1, 130, 4, 2, 24, 0, 0.2, 70},
};

OpAttributes attributes_of(const Heads& h) {
  OpAttributes a;
  a.sequence_length = h.length;
  a.heads = h.heads;
  a.kv_heads = h.kv_heads;
  a.head_dim = h.head_dim;
  a.value_dim = h.value_dim;
  a.scale = 1 / std::sqrt(static_cast<double>(h.head_dim));
  a.window = h.window;
  a.probability = h.probability;
  a.epsilon = 1e-6;
  a.rope_theta = 10000;
  return a;
}

void add_attention(std::vector<TestCase>& cases) {
  for (const Heads& h : kHeads) {
    const OpAttributes a = attributes_of(h);
    const int64_t rows = h.sequences * h.length;
    const auto qkv = real({rows, a.qkv_columns()}), o = real({rows, a.o_columns()});
    const auto lse = real({h.sequences, h.heads, h.length}), w = real({h.head_dim});
    const auto scores = real({h.sequences, h.heads, h.length, h.length}), table = real({h.length, h.head_dim / 2, 2});
    add(cases, h.variant, OpKind::attention, a, {qkv}, {o, lse});
    add(cases, h.variant, OpKind::attention_backward, a, {o, qkv, o, lse}, {qkv});
    if (h.window > 64 || h.probability > 0) continue;
    add(cases, h.variant, OpKind::attention_scores, a, {qkv}, {scores});
    add(cases, h.variant, OpKind::attention_softmax, a, {scores}, {scores});
    add(cases, h.variant, OpKind::attention_context, a, {scores, qkv}, {o});
    add(cases, h.variant, OpKind::attention_scores_backward, a, {scores, qkv}, {qkv});
    add(cases, h.variant, OpKind::attention_softmax_backward, a, {scores, scores}, {scores});
    add(cases, h.variant, OpKind::attention_context_backward, a, {o, scores, qkv}, {scores, qkv});
    if (h.window > 0) continue;
    add(cases, h.variant, OpKind::rope_table, a, {}, {table});
    add(cases, h.variant, OpKind::rope, a, {qkv, table}, {qkv});
    add(cases, h.variant, OpKind::rope_backward, a, {qkv, table}, {qkv});
    add(cases, h.variant, OpKind::qk_norm, a, {qkv, w, w}, {qkv, real({rows, h.heads + h.kv_heads})});
    add(cases, h.variant, OpKind::qk_norm_backward, a, {qkv, qkv, w, w, real({rows, h.heads + h.kv_heads})},
        {qkv, w, w});
  }
}

struct LargeStep {
  Heads heads;
  int64_t degree;
  int32_t rank;
  int64_t step;
};

/// Chunks below, at, and above tiles; keys of ranks before and behind; windows that spare tiles and chunks.
constexpr LargeStep kSteps[] = {
    {{"_first", 2, 150, 4, 2, 24}, 2, 1, 0},
    {{"_before", 2, 128, 3, 1, 48}, 4, 3, 2},
    {{"_behind", 1, 258, 2, 1, 18}, 3, 0, 1},
    {{"_window", 1, 200, 2, 2, 16, 130}, 2, 1, 1},
    {{"_window_spares", 2, 140, 2, 1, 16, 20}, 3, 1, 1},
    {{"_dropout", 2, 150, 4, 2, 24, 0, 0.2}, 2, 0, 1},
    {{"_dropout_window", 1, 190, 4, 2, 24, 33, 0.2}, 2, 0, 0},
    {{"_latent", 2, 150, 2, 2, 48, 0, 0, 32}, 2, 1, 1},
};

void add_ring(std::vector<TestCase>& cases) {
  for (const auto& [h, degree, rank, step] : kSteps) {
    OpAttributes a = attributes_of(h);
    a.context_parallel = degree;
    a.ring_step = step;
    const int64_t rows = h.sequences * h.length;
    const auto q = real({rows, a.q_columns()}), kv = real({rows, a.kv_columns()}), o = real({rows, a.o_columns()});
    const auto lse = real({h.sequences, h.heads, h.length});
    std::vector<TensorType> forward{q, kv}, backward{o, q, kv, o, lse};
    if (step > 0) {
      forward.insert(forward.end(), {o, lse});
      backward.insert(backward.end(), {q, kv});
    }
    add(cases, h.variant, OpKind::ring_attention, a, forward, {o, lse});
    add(cases, h.variant, OpKind::ring_attention_backward, a, backward, {q, kv});
    for (size_t i = cases.size() - 2; i < cases.size(); ++i) cases[i].context.context_rank = rank;
  }
}

void add_latent(std::vector<TestCase>& cases) {
  OpAttributes a;
  a.sequence_length = kLength;
  a.heads = a.kv_heads = 3;
  a.head_dim = 53;
  a.rope_dim = 22;
  a.value_dim = 37;
  const auto q = real({kRows, a.q_columns()}), kv = real({kRows, 3 * (31 + 37)}), k_rope = real({kRows, 22});
  const auto qkv = real({kRows, a.qkv_columns()}), table = real({kLength, 11, 2});
  add(cases, "", OpKind::latent_join, a, {q, kv, k_rope, table}, {qkv});
  add(cases, "", OpKind::latent_join_backward, a, {qkv, table}, {q, kv, k_rope});
}

void add_moves(std::vector<TestCase>& cases) {
  OpAttributes a;
  a.sequence_length = kLength;
  a.context_parallel = 2;
  a.heads = 4;
  a.kv_heads = 2;
  a.head_dim = 18;
  const auto qkv = real({kRows, 144}), q = real({kRows, 72}), kv = real({kRows, 72});
  const auto parts = real({2, kRows, 72}), rows = real({2, kRows, kHidden}), whole = real({2 * kRows, kHidden});
  add(cases, "", OpKind::split_qkv, a, {qkv}, {q, kv});
  add(cases, "", OpKind::join_qkv, a, {q, kv}, {qkv});
  add(cases, "", OpKind::heads_split, a, {qkv}, {parts});
  add(cases, "", OpKind::heads_merge, a, {parts}, {qkv});
  add(cases, "", OpKind::rows_merge, a, {rows}, {whole});
  add(cases, "", OpKind::rows_split, a, {whole}, {rows});
  add(cases, "", OpKind::copy, a, {whole}, {whole});
  add(cases, "_up", OpKind::cast, a, {whole}, {{DType::f64, whole.shape}});
  add(cases, "_down", OpKind::cast, a, {{DType::f64, whole.shape}}, {whole});
}

void add_ends(std::vector<TestCase>& cases) {
  OpAttributes a;
  a.vocabulary = kVocabulary - 9;
  a.decay = true;
  const auto logits = real({kRows, kVocabulary}), stats = real({1, kRows, 3});
  add(cases, "", OpKind::cross_entropy_stats, a, {logits, ids(kRows)}, {real({kRows, 3})});
  add(cases, "", OpKind::cross_entropy_backward, a, {logits, ids(kRows), stats}, {logits, exact(1)});
  add(cases, "", OpKind::cross_entropy_loss, a, {logits, ids(kRows), stats}, {exact(1)});
  add(cases, "", OpKind::cross_entropy, a, {logits, ids(kRows)}, {logits, exact(1)});
  const auto flat = real({30011});
  add(cases, "", OpKind::fill_zero, a, {}, {flat});
  add(cases, "", OpKind::squared_norm, a, {flat}, {exact(1)});
  add(cases, "", OpKind::clip_scale, a, {exact(6)}, {exact(6)});
  add(cases, "", OpKind::adamw, a, {flat, exact(6)}, {flat, flat, flat});
  add(cases, "_master", OpKind::adamw, a, {flat, exact(6)}, {flat, flat, flat, flat});
}

}  // namespace

double cpu_tolerance(OpKind kind) {
  // One float operation is good to 6e-8; sums and products over n terms lose up to about sqrt(n) of that, and 2e-6
  // covers the n <= 1030 of these cases.
  static const std::map<OpKind, double> exceptions = {
      {OpKind::embedding, 0},  // copies
      {OpKind::split_qkv, 0},
      {OpKind::join_qkv, 0},
      {OpKind::heads_split, 0},
      {OpKind::heads_merge, 0},
      {OpKind::rows_merge, 0},
      {OpKind::rows_split, 0},
      {OpKind::copy, 0},
      {OpKind::moe_dispatch, 0},
      {OpKind::cast, 6e-8},                // rounds once
      {OpKind::fill_zero, 0},              // writes zeros
      {OpKind::dropout, 2e-7},             // one product
      {OpKind::clip_scale, 1e-15},         // in double
      {OpKind::rope_table, 1e-7},          // in double, rounded once
      {OpKind::squared_norm, 1e-13},       // sums of 30000 doubles, in another order
      {OpKind::attention_backward, 5e-6},  // exp(s - lse) magnifies the rounding of s by its size; products in a row
      {OpKind::ring_attention_backward, 5e-6},
      {OpKind::cross_entropy, 5e-6},  // exp(x - max) likewise, and a sum over the vocabulary
      {OpKind::cross_entropy_backward, 5e-6},
  };
  const auto found = exceptions.find(kind);
  return found == exceptions.end() ? 2e-6 : found->second;
}

std::vector<TestCase> large_test_cases() {
  std::vector<TestCase> cases;
  add_rows(cases);
  add_attention(cases);
  add_ring(cases);
  add_moves(cases);
  add_latent(cases);
  add_ends(cases);
  for (TestCase& test : large_expert_cases()) cases.push_back(std::move(test));
  return cases;
}

}  // namespace foresail::kernel_tests
