// Facts about the op table that everything generic relies on.
#include "ops/op_table.h"

#include <gtest/gtest.h>

#include <set>

#include "core/error.h"
#include "core/philox.h"

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
