// Attention under context parallelism: all ranks are played one after another in this process, and what they compute
// together is what one rank computes.
#include <cmath>
#include <limits>

#include "kernels/row_map.h"
#include "tests/kernels/backends.h"
#include "tests/kernels/cpu_cases.h"

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
  int64_t value_dim = 0;

  int64_t rows() const { return kSequences * length; }
  int64_t q_width() const { return whole().q_columns(); }
  int64_t kv_width() const { return whole().kv_columns(); }
  int64_t o_width() const { return whole().o_columns(); }
  OpAttributes whole() const {
    OpAttributes a;
    a.sequence_length = length;
    a.heads = heads;
    a.kv_heads = kv_heads;
    a.head_dim = head_dim;
    a.value_dim = value_dim;
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
    {"narrow_values", 2, 16, 4, 2, 6, 0, 0, 4},
    {"wide_values", 4, 24, 4, 4, 4, 5, 0.2, 9},
    {"tiles_of_values", 2, 404, 2, 2, 24, 0, 0, 16},
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
  w.d_o = backend.random({shape.rows(), shape.o_width()}, 3);
  const Place place = place_of(shape, 0);
  Tensor qkv = backend.blank({shape.rows(), shape.q_width() + shape.kv_width()});
  qkv.values = evaluate_on(device, OpKind::join_qkv, a, {w.q, w.kv}, {qkv}, place)[0];
  w.o = backend.blank(w.d_o.shape);
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
    state.o = backend.blank(state.d_o.shape);
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
      Tensor o = backend.blank({shape.rows(), shape.o_width() / degree});
      const Tensor lse = backend.blank({kSequences, between.heads, shape.length});
      o.values = evaluate_on(*device, OpKind::attention, between, {qkv}, {o, lse}, place)[0];
      Tensor parts = backend.blank({degree, local, shape.o_width() / degree});
      parts.values = evaluate_on(*device, OpKind::rows_split, cut, {o}, {parts}, place)[0];
      back.push_back(parts);
    }
    OpAttributes of_o = cut;
    of_o.kv_heads = of_o.value_dim = 0;
    of_o.head_dim = cut.value_width();
    for (int64_t rank = 0; rank < degree; ++rank) {
      Tensor o = backend.blank({local, shape.o_width()});
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

INSTANTIATE_TEST_SUITE_P(Backends, ContextParallel, ::testing::ValuesIn(kBackends), name_of_backend);

}  // namespace
}  // namespace foresail::kernel_tests
