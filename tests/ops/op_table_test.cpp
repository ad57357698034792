// Facts about the op table that everything generic relies on.
#include "ops/op_table.h"

#include <gtest/gtest.h>

#include <set>

#include "core/error.h"
#include "core/philox.h"
#include "ops/zigzag.h"

namespace foresail {
namespace {

OpInstance linear(int64_t rows, int64_t inner, int64_t columns) {
  return {OpKind::linear,
          {},
          {{DType::f32, {rows, inner}}, {DType::f32, {columns, inner}}},
          {{DType::f32, {rows, columns}}}};
}

OpInstance attention(int64_t length, int64_t window) {
  OpInstance op{OpKind::attention, {}, {{DType::f32, {2 * length, 4 * 3 * 8}}}, {{DType::f32, {2 * length, 32}}}};
  op.attributes.sequence_length = length;
  op.attributes.heads = op.attributes.kv_heads = 4;
  op.attributes.head_dim = 8;
  op.attributes.window = window;
  return op;
}

TEST(OpTable, EveryKindHasItsOwnNameAndFindsItself) {
  std::set<std::string_view> names;
  for (int i = 0; i < kOpKindCount; ++i) {
    const auto kind = static_cast<OpKind>(i);
    EXPECT_TRUE(names.insert(name_of(kind)).second) << name_of(kind);
    EXPECT_EQ(op_kind_from_name(name_of(kind)), kind);
    EXPECT_TRUE(static_cast<bool>(info(kind).flops) && static_cast<bool>(info(kind).bytes)) << name_of(kind);
  }
  EXPECT_THROW(op_kind_from_name("linnear"), Error);
}

TEST(OpTable, EveryDifferentiableKindCanBeInferred) {
  for (int i = 0; i < kOpKindCount; ++i) {
    const OpInfo& row = info(static_cast<OpKind>(i));
    EXPECT_TRUE(!row.derivative || row.infer) << row.name;
  }
}

TEST(Flops, OfTheThreeProductsOfALinearLayerAreEqual) {
  const OpInstance forward = linear(10, 20, 30);
  const OpInstance input{
      OpKind::linear_backward_input, {}, {{DType::f32, {10, 30}}, {DType::f32, {30, 20}}}, {{DType::f32, {10, 20}}}};
  const OpInstance weight{
      OpKind::linear_backward_weight, {}, {{DType::f32, {10, 30}}, {DType::f32, {10, 20}}}, {{DType::f32, {30, 20}}}};
  EXPECT_EQ(flops_of(forward), 2.0 * 10 * 20 * 30);
  EXPECT_EQ(flops_of(input), flops_of(forward));
  EXPECT_EQ(flops_of(weight), flops_of(forward));
}

TEST(Flops, OfCausalAttentionCountThePairsThatAreComputed) {
  EXPECT_EQ(flops_of(attention(16, 0)), 4.0 * 2 * 4 * 8 * 136);
  EXPECT_EQ(flops_of(attention(16, 1)), 4.0 * 2 * 4 * 8 * 16);
  EXPECT_EQ(flops_of(attention(16, 16)), flops_of(attention(16, 0)));
  EXPECT_LT(flops_of(attention(16, 5)), flops_of(attention(16, 0)));
}

TEST(Bytes, CountAnAccumulatingOutputTwice) {
  const OpInstance bias{OpKind::bias_backward, {}, {{DType::f32, {10, 30}}}, {{DType::f32, {30}}}};
  EXPECT_EQ(bytes_of(bias), 4.0 * (300 + 2 * 30));
  EXPECT_EQ(bytes_of(linear(10, 20, 30)), 4.0 * (200 + 600 + 300));
}

TEST(Signature, TellsApartWhatCostsDifferently) {
  EXPECT_EQ(signature(linear(10, 20, 30)), signature(linear(10, 20, 30)));
  EXPECT_NE(signature(linear(10, 20, 30)), signature(linear(10, 30, 20)));
  EXPECT_NE(signature(attention(16, 0)), signature(attention(16, 4)));
  OpInstance dropped = attention(16, 0);
  dropped.attributes.probability = 0.1;
  EXPECT_NE(signature(dropped), signature(attention(16, 0)));
}

TEST(Inference, RefusesOperandsThatDoNotFit) {
  const Precision precision;
  const GraphTensor x{"x", TensorRole::activation, DType::f32, {{DimName::tokens, 8}, {DimName::hidden, 4}}, -1};
  const GraphTensor w{"w", TensorRole::weight, DType::f32, {{DimName::ffn, 6}, {DimName::hidden, 5}}, -1};
  EXPECT_THROW(info(OpKind::linear).infer({x, w}, {}, precision), Error);
}

/// 6 heads on 3 KV heads, 4 wide; 6 rows of each sequence on each of 3 context ranks.
OpAttributes context_attributes() {
  OpAttributes a;
  a.sequence_length = 6;
  a.context_parallel = 3;
  a.heads = 6;
  a.kv_heads = 3;
  a.head_dim = 4;
  return a;
}

GraphTensor activation(std::vector<Dim> dims) { return {"x", TensorRole::activation, DType::f32, std::move(dims), -1}; }

GraphTensor infer_one(OpKind kind, const std::vector<GraphTensor>& inputs, const OpAttributes& a) {
  const auto inferred = info(kind).infer(inputs, a, Precision{});
  EXPECT_EQ(inferred.size(), 1u);
  return {"y", TensorRole::activation, inferred.at(0).dtype, inferred.at(0).dims, -1};
}

TEST(Inference, OfWhatOnlyMovesElementsIsInverted) {
  const OpAttributes a = context_attributes();
  const GraphTensor qkv = activation({{DimName::tokens, 12}, {DimName::qkv, 48}});
  const GraphTensor parts = infer_one(OpKind::heads_split, {qkv}, a);
  EXPECT_EQ(parts.dims, (std::vector<Dim>{{DimName::fixed, 3}, {DimName::tokens, 12}, {DimName::qkv, 16}}));
  EXPECT_EQ(infer_one(OpKind::heads_merge, {parts}, a).dims, qkv.dims);
  const GraphTensor whole = infer_one(OpKind::rows_merge, {parts}, a);
  EXPECT_EQ(whole.dims, (std::vector<Dim>{{DimName::tokens, 36}, {DimName::qkv, 16}}));
  EXPECT_EQ(infer_one(OpKind::rows_split, {whole}, a).dims, parts.dims);
  const auto halves = info(OpKind::split_qkv).infer({qkv}, a, Precision{});
  EXPECT_EQ(halves.at(0).dims, (std::vector<Dim>{{DimName::tokens, 12}, {DimName::attention, 24}}));
  EXPECT_EQ(halves.at(1).dims, (std::vector<Dim>{{DimName::tokens, 12}, {DimName::kv, 24}}));
  EXPECT_EQ(infer_one(OpKind::join_qkv, {activation(halves[0].dims), activation(halves[1].dims)}, a).dims, qkv.dims);
}

TEST(Inference, RefusesHeadsAndRowsThatTheDegreeDoesNotDivide) {
  OpAttributes a = context_attributes();
  a.context_parallel = 5;
  const GraphTensor qkv = activation({{DimName::tokens, 12}, {DimName::qkv, 48}});
  EXPECT_THROW(info(OpKind::heads_split).infer({qkv}, a, Precision{}), Error);
  EXPECT_THROW(info(OpKind::rows_split).infer({qkv}, a, Precision{}), Error);
}

TEST(Flops, OfTheRingStepsOfAllRanksAddUpToTheWholeAttention) {
  for (const int64_t window : {0, 5}) {
    OpInstance whole = attention(24, window), step = whole;
    step.kind = OpKind::ring_attention;
    step.attributes.sequence_length = 8;
    step.attributes.context_parallel = 3;
    step.inputs = {{DType::f32, {2 * 8, 32}}, {DType::f32, {2 * 8, 64}}};
    EXPECT_DOUBLE_EQ(9 * flops_of(step), flops_of(whole));
    OpInstance backward = step;
    backward.kind = OpKind::ring_attention_backward;
    backward.inputs.insert(backward.inputs.begin(), step.inputs[0]);
    EXPECT_DOUBLE_EQ(flops_of(backward), 2.5 * flops_of(step));
  }
}

TEST(Signature, TellsApartDegreesAndConversions) {
  OpInstance wide = attention(16, 0);
  wide.attributes.context_parallel = 2;
  EXPECT_NE(signature(wide), signature(attention(16, 0)));
  const OpInstance up{OpKind::cast, {}, {{DType::f32, {8}}}, {{DType::f64, {8}}}};
  const OpInstance same{OpKind::cast, {}, {{DType::f64, {8}}}, {{DType::f64, {8}}}};
  EXPECT_NE(signature(up), signature(same));
}

TEST(Signature, TellsApartGradientsOfAnotherTypeAlone) {
  const TensorType single{DType::f32, {8}}, wide{DType::f64, {8}}, metrics{DType::f64, {6}}, sum{DType::f64, {1}};
  const auto texts = [&](const TensorType& gradient) {
    return std::vector{signature({OpKind::add, {}, {single, gradient}, {single}}),
                       signature({OpKind::squared_norm, {}, {gradient}, {sum}}),
                       signature({OpKind::adamw, {}, {gradient, metrics}, {single, single, single}})};
  };
  for (size_t i = 0; i < texts(wide).size(); ++i) {
    EXPECT_EQ(texts(wide)[i], texts(single)[i] + "/from_f64");
    EXPECT_EQ(texts(single)[i].find("from"), std::string::npos) << "what machines have measured keeps its name";
  }
}

TEST(Zigzag, EveryPositionIsHeldOnceAndOneRankHoldsThemInOrder) {
  for (const int64_t degree : {1, 2, 3, 4}) {
    std::vector<int> held(static_cast<size_t>(degree * 6));
    for (int64_t rank = 0; rank < degree; ++rank) {
      for (int64_t row = 0; row < 6; ++row) ++held.at(static_cast<size_t>(zigzag_position(rank, degree, 6, row)));
    }
    EXPECT_EQ(held, std::vector<int>(held.size(), 1)) << degree;
  }
  for (int64_t row = 0; row < 7; ++row) EXPECT_EQ(zigzag_position(0, 1, 7, row), row);
  EXPECT_EQ(zigzag_position(1, 4, 6, 2), 5);   // the end of chunk 1
  EXPECT_EQ(zigzag_position(1, 4, 6, 3), 18);  // the beginning of chunk 6
}

TEST(Graph, OnlyHeadsFfnAndVocabularyAreCut) {
  for (const DimName cut : {DimName::qkv, DimName::heads, DimName::qk_heads, DimName::attention, DimName::ffn,
                            DimName::gate_up, DimName::vocabulary}) {
    EXPECT_TRUE(cut_by_tensor_parallelism(cut));
  }
  for (const DimName whole :
       {DimName::fixed, DimName::tokens, DimName::sequences, DimName::position, DimName::hidden}) {
    EXPECT_FALSE(cut_by_tensor_parallelism(whole));
  }
}

TEST(Philox, GivesThePublishedNumbers) {
  // Known answers of Random123 1.09 (kat_vectors, philox4x32 with 10 rounds).
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

}  // namespace
}  // namespace foresail
