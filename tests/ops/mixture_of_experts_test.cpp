// Shapes and costs of the operators of a mixture of experts.
#include <gtest/gtest.h>

#include "core/error.h"
#include "ops/op_table.h"

namespace foresail {
namespace {

constexpr int64_t kRows = 12, kHidden = 5, kExperts = 6, kChoices = 2, kWidth = 7, kSequences = 3;

GraphTensor tensor(DType dtype, std::vector<Dim> dims) {
  return {"x", TensorRole::activation, dtype, std::move(dims), -1};
}

OpAttributes attributes() {
  OpAttributes a;
  a.experts = kExperts;
  a.experts_per_token = kChoices;
  a.expert_ranks = 2;
  a.expert_rows = 20;
  a.sequences = kSequences;
  a.sequence_length = kRows / kSequences;
  return a;
}

GraphTensor hidden_rows() { return tensor(DType::f32, {{DimName::tokens, kRows}, {DimName::hidden, kHidden}}); }
GraphTensor logits() { return tensor(DType::f32, {{DimName::tokens, kRows}, {DimName::fixed, kExperts}}); }
GraphTensor choices(DType dtype) { return tensor(dtype, {{DimName::tokens, kRows}, {DimName::fixed, kChoices}}); }
GraphTensor targets(int64_t rows) { return tensor(DType::i32, {{DimName::tokens, rows}}); }
GraphTensor weights() {
  return tensor(DType::f32,
                {{DimName::experts, kExperts / 2}, {DimName::expert_gate_up, 2 * kWidth}, {DimName::hidden, kHidden}});
}
GraphTensor counts(int64_t size) { return tensor(DType::i32, {{DimName::fixed, size}}); }

TEST(Experts, RouterDispatchAndCombineHaveTheShapesOfTheirDescription) {
  const Precision precision;
  const auto routed = info(OpKind::moe_route).infer({logits()}, attributes(), precision);
  EXPECT_EQ(routed.at(0).dtype, DType::i32);
  EXPECT_EQ(routed.at(1).dtype, precision.statistic);
  EXPECT_EQ(routed[1].dims, choices(DType::f32).dims);
  const auto sent = info(OpKind::moe_dispatch).infer({hidden_rows(), choices(DType::i32)}, attributes(), precision);
  EXPECT_EQ(sent.at(0).dims, (std::vector<Dim>{{DimName::expert_rows, 20}, {DimName::hidden, kHidden}}));
  EXPECT_EQ(sent.at(1).dims, choices(DType::i32).dims);
  EXPECT_EQ(sent.at(2).dims, counts(kExperts).dims);
  EXPECT_EQ(sent.at(3).dtype, DType::f64);
  const GraphTensor buffer = tensor(DType::f32, sent[0].dims);
  const auto y = info(OpKind::moe_combine).infer({buffer, choices(DType::i32), choices(DType::f32)}, {}, precision);
  EXPECT_EQ(y.at(0).dims, hidden_rows().dims);
}

TEST(Experts, TheActivationOfAnExpertIsCutAsItsColumns) {
  const GraphTensor x = tensor(DType::f32, {{DimName::expert_rows, 20}, {DimName::hidden, kHidden}});
  const auto gate_up = info(OpKind::expert_linear).infer({x, weights(), counts(kExperts)}, {}, Precision{});
  EXPECT_EQ(gate_up.at(0).dims, (std::vector<Dim>{{DimName::expert_rows, 20}, {DimName::expert_gate_up, 2 * kWidth}}));
  const auto activated = info(OpKind::swiglu).infer({tensor(DType::f32, gate_up[0].dims)}, {}, Precision{});
  EXPECT_EQ(activated.at(0).dims, (std::vector<Dim>{{DimName::expert_rows, 20}, {DimName::expert_ffn, kWidth}}));
  for (const DimName name : {DimName::experts, DimName::expert_ffn, DimName::expert_gate_up, DimName::expert_rows}) {
    EXPECT_FALSE(cut_by_tensor_parallelism(name));
  }
}

TEST(Experts, StatisticsAreOfAllSequencesAlsoWhereRowsAreCut) {
  OpAttributes a = attributes();
  const auto whole = info(OpKind::moe_statistics).infer({logits(), choices(DType::i32), targets(kRows)}, a, {});
  EXPECT_EQ(whole.at(0).dims,
            (std::vector<Dim>{{DimName::sequences, kSequences}, {DimName::fixed, 3}, {DimName::fixed, kExperts}}));
  a.rows_cut = true;
  a.sequence_length = 8;  // twice what the rank holds of 3 sequences
  EXPECT_EQ(info(OpKind::moe_statistics).infer({logits(), choices(DType::i32), targets(kRows)}, a, {})[0].dims,
            whole[0].dims);
}

TEST(Experts, OperandsThatDoNotFitAreRefused) {
  const Precision precision;
  OpAttributes a = attributes();
  a.experts_per_token = kExperts + 1;
  EXPECT_THROW(info(OpKind::moe_route).infer({logits()}, a, precision), Error);
  a = attributes();
  a.expert_rows = 21;
  EXPECT_THROW(info(OpKind::moe_dispatch).infer({hidden_rows(), choices(DType::i32)}, a, precision), Error);
  a = attributes();
  a.sequence_length = 5;
  EXPECT_THROW(info(OpKind::moe_statistics).infer({logits(), choices(DType::i32), targets(kRows)}, a, precision),
               Error);
  EXPECT_THROW(info(OpKind::expert_linear).infer({hidden_rows(), weights(), counts(kExperts - 1)}, {}, precision),
               Error);
}

OpInstance product(OpKind kind, int64_t routed) {
  const TensorType x{DType::f32, {20, kHidden}}, w{DType::f32, {3, kWidth, kHidden}}, y{DType::f32, {20, kWidth}},
      rows{DType::i32, {6}};
  OpInstance op{kind, {}, {x, w, rows}, {y}};
  if (kind == OpKind::expert_linear_backward_input) op = {kind, {}, {y, w, rows}, {x}};
  if (kind == OpKind::expert_linear_backward_weight) op = {kind, {}, {y, x, rows}, {w}};
  op.attributes.routed_rows = routed;
  return op;
}

TEST(Flops, OfExpertsCountTheRowsInUse) {
  for (const OpKind kind :
       {OpKind::expert_linear, OpKind::expert_linear_backward_input, OpKind::expert_linear_backward_weight}) {
    EXPECT_EQ(flops_of(product(kind, 8)), 2.0 * 8 * kWidth * kHidden) << name_of(kind);
    EXPECT_EQ(flops_of(product(kind, 0)), 2.0 * 20 * kWidth * kHidden) << name_of(kind);
    EXPECT_LT(bytes_of(product(kind, 8)), bytes_of(product(kind, 0))) << name_of(kind);
    EXPECT_NE(signature(product(kind, 8)), signature(product(kind, 9))) << name_of(kind);
  }
  EXPECT_EQ(bytes_of(product(OpKind::expert_linear, 8)), 4.0 * (8 * kHidden + 3 * kWidth * kHidden + 20 * kWidth) + 24);
}

TEST(Bytes, OfRoutedRowsCountThoseThatArePicked) {
  const TensorType buffer{DType::f32, {20, kHidden}}, slot{DType::i32, {4, kChoices}}, gate{DType::f32, {4, kChoices}},
      rows{DType::f32, {4, kHidden}};
  const OpInstance combine{OpKind::moe_combine, {}, {buffer, slot, gate}, {rows}};
  EXPECT_EQ(bytes_of(combine), 4.0 * (4 * kChoices * kHidden + 2 * 4 * kChoices + 4 * kHidden));
}

}  // namespace
}  // namespace foresail
