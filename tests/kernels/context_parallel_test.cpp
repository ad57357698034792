// Context and sequence parallelism at the level of operators: all ranks are played one after another in this process, and
// what they compute together is what one rank computes.
#include <cmath>
#include <limits>
#include <set>

#include "kernels/row_map.h"
#include "tests/kernels/cpu_cases.h"
#include "tests/kernels/reference_evaluate.h"

namespace foresail::kernel_tests {
namespace {

constexpr int64_t kSequences = 2;

/// One attention over whole sequences and how many context ranks share it.
struct Shape {
  const char* name;
  int64_t degree, length;  ///< positions of a whole sequence
  int64_t heads, kv_heads, head_dim;
  int64_t window = 0;
  double probability = 0;

  int64_t rows() const { return kSequences * length; }
  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return 2 * kv_heads * head_dim; }
  OpAttributes whole() const {
    OpAttributes a;
    a.sequence_length = length;
    a.heads = heads;
    a.kv_heads = kv_heads;
    a.head_dim = head_dim;
    a.scale = 0.6;
    a.window = window;
    a.probability = probability;
    a.random_site = 2;
    return a;
  }
  /// What every context rank has.
  OpAttributes cut() const {
    OpAttributes a = whole();
    a.sequence_length = length / degree;
    a.context_parallel = degree;
    return a;
  }
};

constexpr Shape kShapes[] = {
    {"two", 2, 12, 2, 2, 4},
    {"two_grouped", 2, 16, 6, 2, 3},
    {"three", 3, 18, 3, 1, 5},
    {"four", 4, 24, 8, 4, 4},
    {"four_of_the_shortest", 4, 8, 2, 1, 4},
    {"window", 2, 24, 2, 1, 4, 7},
    {"window_of_one", 3, 12, 2, 1, 4, 1},
    {"window_of_four", 4, 32, 4, 2, 4, 5},
    {"dropout", 2, 12, 4, 2, 4, 0, 0.3},
    {"dropout_window", 3, 24, 3, 3, 4, 11, 0.2},
    {"tiles", 2, 404, 2, 1, 20},
    {"tiles_dropout_window", 2, 404, 2, 1, 16, 150, 0.1},
    {"tiles_of_four", 4, 560, 2, 2, 16, 0, 0.2},
};

Place place_of(const Shape& shape, int64_t rank) {
  Place place;
  place.step.seed = 11;
  place.step.step = 5;
  place.context.layer = 3;
  place.context.first_row = 4 * shape.length;
  place.context.tensor_rank = 1;
  place.context.tensor_size = 2;
  place.context.context_rank = static_cast<int32_t>(rank);
  place.context.context_size = static_cast<int32_t>(shape.degree);
  return place;
}

/// A back end and how exactly it computes.
struct Backend {
  const char* name;
  DType dtype;
  double tolerance;           ///< of a forward result, relative to the largest element
  double backward_tolerance;  ///< of a gradient

  std::unique_ptr<Device> make() const { return dtype == DType::f64 ? make_reference_device() : make_cpu_device(1); }
  Tensor random(std::vector<int64_t> shape, uint64_t stream) const {
    return of(random_tensor(std::move(shape), stream));
  }
  /// An output before the run.
  Tensor blank(std::vector<int64_t> shape) const {
    return of(constant_tensor(std::move(shape), std::numeric_limits<double>::quiet_NaN()));
  }
  Tensor of(Tensor tensor) const {
    tensor.dtype = dtype;
    for (double& value : tensor.values) {
      if (dtype == DType::f32) value = static_cast<float>(value);
    }
    return tensor;
  }
};

/// The rows of a whole tensor [B*L, W] that a context rank holds, in its order.
Tensor rows_of_rank(const Shape& shape, const Tensor& whole, int64_t rank) {
  const int64_t local = kSequences * shape.length / shape.degree, width = whole.shape[1];
  const RowMap map(shape.cut(), place_of(shape, rank).context, local);
  Tensor part{{local, width}, {}, whole.dtype};
  for (int64_t row = 0; row < local; ++row) {
    const int64_t at = (map.sequence(row) * shape.length + map.position(row)) * width;
    part.values.insert(part.values.end(), whole.values.begin() + at, whole.values.begin() + at + width);
  }
  return part;
}

Tensor with_values(Tensor tensor, std::vector<double> values) {
  tensor.values = std::move(values);
  return tensor;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

/// Whole operands and what one rank makes of them.
struct Whole {
  Tensor q, kv, d_o, o, lse, dq, dkv;
};

Whole attend_whole(const Shape& shape, const Backend& backend, Device& device) {
  const OpAttributes a = shape.whole();
  Whole w;
  w.q = backend.random({shape.rows(), shape.q_width()}, 1);
  w.kv = backend.random({shape.rows(), shape.kv_width()}, 2);
  w.d_o = backend.random({shape.rows(), shape.q_width()}, 3);
  const Place place = place_of(shape, 0);
  Tensor qkv = backend.blank({shape.rows(), shape.q_width() + shape.kv_width()});
  qkv.values = evaluate_on(device, OpKind::join_qkv, a, {w.q, w.kv}, {qkv}, place)[0];
  w.o = backend.blank(w.q.shape);
  w.lse = backend.blank({kSequences, shape.heads, shape.length});
  const auto y = evaluate_on(device, OpKind::attention, a, {qkv}, {w.o, w.lse}, place);
  w.o.values = y[0];
  w.lse.values = y[1];
  const auto dqkv = evaluate_on(device, OpKind::attention_backward, a, {w.d_o, qkv, w.o, w.lse}, {qkv}, place)[0];
  const auto parts = evaluate_on(device, OpKind::split_qkv, a, {with_values(qkv, dqkv)}, {w.q, w.kv}, place);
  w.dq = with_values(w.q, parts[0]);
  w.dkv = with_values(w.kv, parts[1]);
  return w;
}

/// What the ring makes of it: all ranks, step by step; kv and its gradient go round.
struct RankState {
  Tensor q, kv, d_o, o, lse, dq;
};

OpAttributes at_step(const Shape& shape, int64_t step) {
  OpAttributes a = shape.cut();
  a.ring_step = step;
  return a;
}

int64_t source_of(const Shape& shape, int64_t rank, int64_t step) {
  return (rank - step + shape.degree) % shape.degree;
}

std::vector<RankState> ring_forward(const Shape& shape, const Backend& backend, Device& device, const Whole& whole) {
  std::vector<RankState> ranks;
  for (int64_t rank = 0; rank < shape.degree; ++rank) {
    RankState state;
    state.q = rows_of_rank(shape, whole.q, rank);
    state.kv = rows_of_rank(shape, whole.kv, rank);
    state.d_o = rows_of_rank(shape, whole.d_o, rank);
    state.o = backend.blank(state.q.shape);
    state.lse = backend.blank({kSequences, shape.heads, shape.length / shape.degree});
    ranks.push_back(state);
  }
  for (int64_t step = 0; step < shape.degree; ++step) {
    for (int64_t rank = 0; rank < shape.degree; ++rank) {
      RankState& state = ranks[static_cast<size_t>(rank)];
      std::vector<Tensor> inputs{state.q, ranks[static_cast<size_t>(source_of(shape, rank, step))].kv};
      if (step > 0) inputs.insert(inputs.end(), {state.o, state.lse});
      const auto y = evaluate_on(device, OpKind::ring_attention, at_step(shape, step), inputs,
                                 {backend.blank(state.o.shape), backend.blank(state.lse.shape)}, place_of(shape, rank));
      state.o.values = y[0];
      state.lse.values = y[1];
    }
  }
  return ranks;
}

/// Gradients of the keys and values by the rank where they began; fills dq of all ranks.
std::vector<Tensor> ring_backward(const Shape& shape, const Backend& backend, Device& device,
                                  std::vector<RankState>& ranks) {
  std::vector<Tensor> dkv(ranks.size());
  for (int64_t step = 0; step < shape.degree; ++step) {
    for (int64_t rank = 0; rank < shape.degree; ++rank) {
      RankState& state = ranks[static_cast<size_t>(rank)];
      const auto source = static_cast<size_t>(source_of(shape, rank, step));
      std::vector<Tensor> inputs{state.d_o, state.q, ranks[source].kv, state.o, state.lse};
      if (step > 0) inputs.insert(inputs.end(), {state.dq, dkv[source]});
      const auto gradients =
          evaluate_on(device, OpKind::ring_attention_backward, at_step(shape, step), inputs,
                      {backend.blank(state.q.shape), backend.blank(state.kv.shape)}, place_of(shape, rank));
      state.dq = with_values(state.q, gradients[0]);
      dkv[source] = with_values(state.kv, gradients[1]);
    }
  }
  return dkv;
}

void PrintTo(const Backend& backend, std::ostream* out) { *out << backend.name; }

class ContextParallel : public ::testing::TestWithParam<Backend> {};

TEST_P(ContextParallel, RingStepsOfAllRanksEqualWholeAttention) {
  const Team team(1);
  const Backend& backend = GetParam();
  const auto device = backend.make();
  for (const Shape& shape : kShapes) {
    const Whole whole = attend_whole(shape, backend, *device);
    std::vector<RankState> ranks = ring_forward(shape, backend, *device, whole);
    const std::vector<Tensor> dkv = ring_backward(shape, backend, *device, ranks);
    for (int64_t rank = 0; rank < shape.degree; ++rank) {
      SCOPED_TRACE(std::string(shape.name) + " rank " + std::to_string(rank));
      const RankState& state = ranks[static_cast<size_t>(rank)];
      EXPECT_TRUE(all_near(state.o.values, rows_of_rank(shape, whole.o, rank).values,
                           backend.tolerance * largest(whole.o.values)));
      EXPECT_TRUE(all_near(state.dq.values, rows_of_rank(shape, whole.dq, rank).values,
                           backend.backward_tolerance * largest(whole.dq.values)));
      EXPECT_TRUE(all_near(dkv[static_cast<size_t>(rank)].values, rows_of_rank(shape, whole.dkv, rank).values,
                           backend.backward_tolerance * largest(whole.dkv.values)));
    }
  }
}

/// The log-sum-exp [B,A,S] of a rank against that of whole sequences.
TEST_P(ContextParallel, RingStepsOfAllRanksLeaveTheLogSumExpOfWholeAttention) {
  const Team team(1);
  const Backend& backend = GetParam();
  const auto device = backend.make();
  for (const Shape& shape : kShapes) {
    const Whole whole = attend_whole(shape, backend, *device);
    const std::vector<RankState> ranks = ring_forward(shape, backend, *device, whole);
    const int64_t local = shape.length / shape.degree;
    for (int64_t rank = 0; rank < shape.degree; ++rank) {
      const Tensor& lse = ranks[static_cast<size_t>(rank)].lse;
      for (size_t i = 0; i < lse.values.size(); ++i) {
        const int64_t row = static_cast<int64_t>(i) % local, head = static_cast<int64_t>(i) / local;
        const int64_t position = zigzag_position(rank, shape.degree, local, row);
        ASSERT_NEAR(lse.values[i], whole.lse.values[static_cast<size_t>(head * shape.length + position)],
                    10 * backend.tolerance)
            << shape.name << " rank " << rank;
      }
    }
  }
}

/// Heads cut over the context ranks, every rank whole sequences of its heads: an all-to-all there and back.
TEST_P(ContextParallel, AttentionBetweenAllToAllsEqualsWholeAttention) {
  const Team team(1);
  const Backend& backend = GetParam();
  const auto device = backend.make();
  int tried = 0;
  for (const Shape& shape : kShapes) {
    if (shape.kv_heads % shape.degree != 0) continue;
    ++tried;
    SCOPED_TRACE(shape.name);
    const int64_t degree = shape.degree, local = shape.rows() / degree, width = shape.q_width() + shape.kv_width();
    const Whole whole = attend_whole(shape, backend, *device);
    const OpAttributes cut = shape.cut();
    OpAttributes between = shape.whole();
    between.heads /= degree;
    between.kv_heads /= degree;
    between.heads_cut = true;
    std::vector<Tensor> sent;  // by sender: [C,T,W/C]
    for (int64_t rank = 0; rank < degree; ++rank) {
      Tensor qkv = backend.blank({local, width});
      qkv.values = evaluate_on(*device, OpKind::join_qkv, cut,
                               {rows_of_rank(shape, whole.q, rank), rows_of_rank(shape, whole.kv, rank)}, {qkv},
                               place_of(shape, rank))[0];
      Tensor parts = backend.blank({degree, local, width / degree});
      parts.values = evaluate_on(*device, OpKind::heads_split, cut, {qkv}, {parts}, place_of(shape, rank))[0];
      sent.push_back(parts);
    }
    const auto exchange = [&](const std::vector<Tensor>& from, int64_t rank) {  // what `rank` receives
      const size_t part = from[0].values.size() / static_cast<size_t>(degree);
      Tensor received = from[0];
      received.values.clear();
      for (const Tensor& sender : from) {
        const auto first = sender.values.begin() + static_cast<ptrdiff_t>(part) * rank;
        received.values.insert(received.values.end(), first, first + static_cast<ptrdiff_t>(part));
      }
      return received;
    };
    std::vector<Tensor> back;
    for (int64_t rank = 0; rank < degree; ++rank) {
      const Place place = place_of(shape, rank);
      Tensor qkv = backend.blank({shape.rows(), width / degree});
      qkv.values = evaluate_on(*device, OpKind::rows_merge, cut, {exchange(sent, rank)}, {qkv}, place)[0];
      Tensor o = backend.blank({shape.rows(), shape.q_width() / degree});
      const Tensor lse = backend.blank({kSequences, between.heads, shape.length});
      o.values = evaluate_on(*device, OpKind::attention, between, {qkv}, {o, lse}, place)[0];
      Tensor parts = backend.blank({degree, local, shape.q_width() / degree});
      parts.values = evaluate_on(*device, OpKind::rows_split, cut, {o}, {parts}, place)[0];
      back.push_back(parts);
    }
    OpAttributes of_o = cut;
    of_o.kv_heads = 0;
    for (int64_t rank = 0; rank < degree; ++rank) {
      Tensor o = backend.blank({local, shape.q_width()});
      o.values = evaluate_on(*device, OpKind::heads_merge, of_o, {exchange(back, rank)}, {o}, place_of(shape, rank))[0];
      EXPECT_EQ(o.values, rows_of_rank(shape, whole.o, rank).values) << "rank " << rank;
    }
  }
  EXPECT_GT(tried, 3);
}

/// Queries for which the steps before found nothing have a log-sum-exp of minus infinity, and their o means nothing.
TEST_P(ContextParallel, RingStepGoesOnFromNothing) {
  const Team team(1);
  const Backend& backend = GetParam();
  const auto device = backend.make();
  const double nothing = -std::numeric_limits<double>::infinity();
  for (const Shape& shape : {kShapes[0], Shape{"window", 2, 24, 2, 2, 4, 2}}) {
    const int64_t local = shape.rows() / shape.degree;
    const Tensor q = backend.random({local, shape.q_width()}, 1), kv = backend.random({local, shape.kv_width()}, 2);
    const Tensor lse = backend.of(constant_tensor({kSequences, shape.heads, shape.length / 2}, nothing));
    const Tensor zero = backend.of(constant_tensor(q.shape, 0)), any = backend.random(q.shape, 3);
    const auto run = [&](const Tensor& before) {
      return evaluate_on(*device, OpKind::ring_attention, at_step(shape, 1), {q, kv, before, lse},
                         {backend.blank(q.shape), backend.blank(lse.shape)}, place_of(shape, 1));
    };
    const auto from_zero = run(zero), from_any = run(any);
    int empty = 0, found = 0;
    for (size_t i = 0; i < from_zero[1].size(); ++i) {
      ASSERT_FALSE(std::isnan(from_zero[1][i]));
      (from_zero[1][i] == nothing ? empty : found) += 1;
    }
    for (const double value : from_zero[0]) ASSERT_TRUE(std::isfinite(value));
    EXPECT_GT(found, 0) << shape.name;
    if (shape.window > 0) {
      EXPECT_GT(empty, 0) << shape.name;
    } else {
      EXPECT_EQ(from_zero, from_any);
    }
  }
}

const Backend kBackends[] = {{"reference", DType::f64, 1e-12, 1e-12}, {"cpu", DType::f32, 2e-6, 5e-6}};
INSTANTIATE_TEST_SUITE_P(Backends, ContextParallel, ::testing::ValuesIn(kBackends),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(RowMap, EveryRowOfTheBatchIsHeldByOneRank) {
  for (const int64_t degree : {1, 2, 3, 4}) {
    for (const int64_t tensor_size : {1, 2, 4}) {
      OpAttributes a;
      a.sequence_length = 8;
      a.context_parallel = degree;
      a.rows_cut = tensor_size > 1;
      const int64_t rows = 2 * 8 / tensor_size, first = 5 * 8 * degree;
      std::set<int64_t> held;
      KernelContext context;
      context.first_row = first;
      for (context.context_rank = 0; context.context_rank < degree; ++context.context_rank) {
        for (context.tensor_rank = 0; context.tensor_rank < tensor_size; ++context.tensor_rank) {
          const RowMap map(a, context, rows);
          for (int64_t row = 0; row < rows; ++row) {
            EXPECT_TRUE(held.insert(map.global_row(row)).second);
            EXPECT_EQ(map.global_row(row), first + map.sequence(row) * 8 * degree + map.position(row));
          }
        }
      }
      EXPECT_EQ(held.size(), static_cast<size_t>(2 * 8 * degree));
      EXPECT_EQ(*held.begin(), first);
      EXPECT_EQ(*held.rbegin(), first + 2 * 8 * degree - 1);
    }
  }
}

TEST(RowMap, OfOneRankCountsOn) {
  OpAttributes a;
  a.sequence_length = 5;
  KernelContext context;
  context.first_row = 35;
  context.tensor_rank = 3;  // holds the same rows
  const RowMap map(a, context, 15);
  for (int64_t row = 0; row < 15; ++row) {
    EXPECT_EQ(map.position(row), row % 5);
    EXPECT_EQ(map.global_row(row), 35 + row);
  }
}

/// Rows of a micro-batch [B*L, W] as the ranks of a mesh hold them.
struct Cut {
  OpAttributes a;
  Place place;
  std::vector<int64_t> rows;  ///< of the whole micro-batch
};

constexpr int64_t kLength = 12, kRows = kSequences * kLength;

std::vector<Cut> all_cuts(int64_t degree, int32_t tensor_size, const OpAttributes& attributes, const Place& place) {
  std::vector<Cut> cuts;
  for (int64_t context = 0; context < degree; ++context) {
    for (int32_t tensor = 0; tensor < tensor_size; ++tensor) {
      Cut cut{attributes, place, {}};
      cut.a.sequence_length = kLength / degree;
      cut.a.context_parallel = degree;
      cut.a.rows_cut = tensor_size > 1;
      cut.place.context.context_rank = static_cast<int32_t>(context);
      cut.place.context.context_size = static_cast<int32_t>(degree);
      cut.place.context.tensor_rank = tensor;
      cut.place.context.tensor_size = tensor_size;
      const int64_t rows = kRows / degree / tensor_size;
      const RowMap map(cut.a, cut.place.context, rows);
      for (int64_t row = 0; row < rows; ++row) cut.rows.push_back(map.global_row(row) - place.context.first_row);
      cuts.push_back(cut);
    }
  }
  return cuts;
}

Tensor rows_of(const Tensor& whole, const std::vector<int64_t>& rows) {
  const int64_t width = whole.shape[1];
  Tensor part{{static_cast<int64_t>(rows.size()), width}, {}, whole.dtype};
  for (const int64_t row : rows) {
    const auto first = whole.values.begin() + row * width;
    part.values.insert(part.values.end(), first, first + width);
  }
  return part;
}

TEST_P(ContextParallel, RowOperatorsOfAllRanksEqualTheWhole) {
  const Team team(1);
  const Backend& backend = GetParam();
  const auto device = backend.make();
  OpAttributes a;
  a.sequence_length = kLength;
  a.heads = 2;
  a.kv_heads = 1;
  a.head_dim = 4;
  a.rope_theta = 100;
  a.probability = 0.4;
  Place place;
  place.step.seed = 5;
  place.context.first_row = 3 * kRows;
  const Tensor x = backend.random({kRows, 16}, 1), table = backend.random({kLength, 16}, 2);
  Tensor angles = backend.blank({kLength, 2, 2});
  angles.values = evaluate_on(*device, OpKind::rope_table, a, {}, {angles}, place)[0];
  const Tensor zeros = backend.of(constant_tensor(table.shape, 0));
  const auto whole = [&](OpKind kind, const std::vector<Tensor>& inputs, const Tensor& output) {
    return with_values(output, evaluate_on(*device, kind, a, inputs, {output}, place)[0]);
  };
  const Tensor dropped = whole(OpKind::dropout, {x}, x), rotated = whole(OpKind::rope, {x, angles}, x);
  const Tensor turned = whole(OpKind::rope_backward, {x, angles}, x);
  const Tensor placed = whole(OpKind::position_embedding, {x, table}, x);
  const Tensor gradient = whole(OpKind::position_embedding_backward, {x}, zeros);
  for (const int64_t degree : {1, 2, 3}) {
    for (const int32_t tensor_size : {1, 2, 4}) {
      Tensor sum = zeros;
      for (const Cut& cut : all_cuts(degree, tensor_size, a, place)) {
        const Tensor part = rows_of(x, cut.rows);
        const auto run = [&](OpKind kind, const std::vector<Tensor>& inputs, const Tensor& output) {
          return evaluate_on(*device, kind, cut.a, inputs, {output}, cut.place)[0];
        };
        EXPECT_EQ(run(OpKind::dropout, {part}, part), rows_of(dropped, cut.rows).values);
        EXPECT_EQ(run(OpKind::rope, {part, angles}, part), rows_of(rotated, cut.rows).values);
        EXPECT_EQ(run(OpKind::rope_backward, {part, angles}, part), rows_of(turned, cut.rows).values);
        EXPECT_EQ(run(OpKind::position_embedding, {part, table}, part), rows_of(placed, cut.rows).values);
        sum.values = run(OpKind::position_embedding_backward, {part}, sum);
      }
      EXPECT_TRUE(all_near(sum.values, gradient.values, 10 * backend.tolerance)) << degree << " x " << tensor_size;
    }
  }
}

TEST_P(ContextParallel, SplitsAndMergesAreInverse) {
  const Team team(1);
  const Backend& backend = GetParam();
  const auto device = backend.make();
  OpAttributes a;
  a.sequence_length = 4;
  a.context_parallel = 3;
  a.heads = 6;
  a.kv_heads = 3;
  a.head_dim = 2;
  const auto there_and_back = [&](OpKind there, OpKind back, const Tensor& x, const Tensor& parts) {
    const Tensor moved = with_values(parts, evaluate_on(*device, there, a, {x}, {parts}, {})[0]);
    EXPECT_EQ(evaluate_on(*device, back, a, {moved}, {x}, {})[0], x.values) << name_of(there);
    std::multiset<double> before(x.values.begin(), x.values.end()), after(moved.values.begin(), moved.values.end());
    EXPECT_EQ(before, after) << name_of(there);
    return moved;
  };
  const Tensor qkv = backend.random({8, 24}, 1);
  const Tensor parts = there_and_back(OpKind::heads_split, OpKind::heads_merge, qkv, backend.blank({3, 8, 8}));
  // Part 2, row 1: the third share of the query heads, of the key heads, of the value heads.
  const std::vector<double> expected{qkv.values[24 + 8],  qkv.values[24 + 9],  qkv.values[24 + 10],
                                     qkv.values[24 + 11], qkv.values[24 + 16], qkv.values[24 + 17],
                                     qkv.values[24 + 22], qkv.values[24 + 23]};
  const auto part = parts.values.begin() + (2 * 8 + 1) * 8;
  EXPECT_EQ(std::vector<double>(part, part + 8), expected);
  const Tensor whole = there_and_back(OpKind::rows_merge, OpKind::rows_split, parts, backend.blank({24, 8}));
  // Rank 1's second chunk is chunk 4 of 6: its first row of sequence 1 stands at position 8.
  const auto from = parts.values.begin() + (1 * 8 + 4 + 2) * 8, to = whole.values.begin() + (12 + 8) * 8;
  EXPECT_EQ(std::vector<double>(from, from + 8), std::vector<double>(to, to + 8));
  const auto halves =
      evaluate_on(*device, OpKind::split_qkv, a, {qkv}, {backend.blank({8, 12}), backend.blank({8, 12})}, {});
  EXPECT_EQ(halves[1][12], qkv.values[24 + 12]);
}

TEST(Cast, RoundsToSingleAndBackExactly) {
  const Team team(1);
  const Tensor x = random_tensor({70}, 1);
  Tensor single = constant_tensor({70}, 0);
  single.dtype = DType::f32;
  for (const bool cpu : {false, true}) {
    const auto device = cpu ? make_cpu_device(1) : make_reference_device();
    const auto rounded = evaluate_on(*device, OpKind::cast, {}, {x}, {single}, {})[0];
    for (size_t i = 0; i < rounded.size(); ++i) EXPECT_EQ(rounded[i], static_cast<float>(x.values[i]));
    EXPECT_EQ(evaluate_on(*device, OpKind::cast, {}, {with_values(single, rounded)}, {x}, {})[0], rounded);
  }
}

}  // namespace
}  // namespace foresail::kernel_tests
