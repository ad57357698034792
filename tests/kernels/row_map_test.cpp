// Where rows stand, and operators that go by it: what the ranks that share the rows of a batch compute together is what
// one rank computes. Operators that move rows and heads between ranks.
#include <set>

#include "kernels/row_map.h"
#include "tests/kernels/backends.h"
#include "tests/kernels/cpu_cases.h"

namespace foresail::kernel_tests {
namespace {

constexpr int64_t kSequences = 2;

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

class CutRows : public ::testing::TestWithParam<Backend> {};

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

TEST_P(CutRows, RowOperatorsOfAllRanksEqualTheWhole) {
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

TEST_P(CutRows, SplitsAndMergesAreInverse) {
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

INSTANTIATE_TEST_SUITE_P(Backends, CutRows, ::testing::ValuesIn(kBackends), name_of_backend);

}  // namespace
}  // namespace foresail::kernel_tests
