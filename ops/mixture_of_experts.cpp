// Rules of the operators of a mixture of experts: a router, the way of the rows to the experts and back, and the experts'
// products.
#include "core/error.h"
#include "ops/rules.h"

namespace foresail::rules {
namespace {

constexpr int64_t kStatisticRows = 3;  ///< choices, probabilities, sizes of the sequence (ops/op.h)

double as_real(int64_t value) { return static_cast<double>(value); }

/// Rows in use of an operator on a buffer of routed rows; all of them where nobody said how many (bounded by the buffer).
double rows_in_use(const OpInstance& op) {
  const int64_t rows = op.inputs[0].shape[0], routed = op.attributes.routed_rows;
  return as_real(routed > 0 && routed < rows ? routed : rows);
}

}  // namespace

Inferred infer_moe_route(const Inputs& inputs, const OpAttributes& attributes, const Precision& precision) {
  const std::vector<Dim>& logits = inputs.at(0).dims;
  ensure(logits.at(1).size == attributes.experts && attributes.experts_per_token > 0 &&
             attributes.experts_per_token <= attributes.experts,
         "a router's columns are the experts, and a token goes to some of them");
  const std::vector<Dim> choices{logits[0], {DimName::fixed, attributes.experts_per_token}};
  return {{DType::i32, choices}, {precision.statistic, choices}};
}

Inferred infer_moe_statistics(const Inputs& inputs, const OpAttributes& attributes, const Precision& precision) {
  // All sequences of the micro-batch, also where this rank holds a share of their rows.
  ensure(attributes.sequences > 0 && attributes.sequence_length > 0 &&
             (attributes.rows_cut || inputs.at(0).dims.at(0).size == attributes.sequences * attributes.sequence_length),
         "a router's rows belong to the sequences of the micro-batch");
  return {{precision.statistic,
           {{DimName::sequences, attributes.sequences}, {DimName::fixed, kStatisticRows}, inputs.at(0).dims.at(1)}}};
}

Inferred infer_moe_dispatch(const Inputs& inputs, const OpAttributes& attributes, const Precision&) {
  const Dim& columns = inputs.at(0).dims.at(1);
  ensure(inputs[0].dims[0] == inputs.at(1).dims.at(0), "every row has its experts");
  ensure(attributes.expert_ranks > 0 && attributes.expert_rows % attributes.expert_ranks == 0 &&
             attributes.experts % attributes.expert_ranks == 0,
         "expert ranks hold equal shares of the experts and get equal shares of the buffer");
  return {{inputs[0].dtype, {{DimName::expert_rows, attributes.expert_rows}, columns}},
          {DType::i32, inputs[1].dims},
          {DType::i32, {{DimName::fixed, attributes.experts}}},
          {DType::f64, {{DimName::fixed, 1}}}};
}

Inferred infer_expert_linear(const Inputs& inputs, const OpAttributes&, const Precision& precision) {
  const std::vector<Dim>&x = inputs.at(0).dims, &weight = inputs.at(1).dims;
  ensure(weight.size() == 3 && x.at(1).size == weight[2].size, "inner dimensions of the experts' products agree");
  ensure(inputs.at(2).dims.at(0).size % weight[0].size == 0, "every source has a count for every expert");
  return {{precision.activation, {x[0], weight[1]}}};
}

Inferred infer_moe_combine(const Inputs& inputs, const OpAttributes&, const Precision& precision) {
  ensure(inputs.at(1).dims == inputs.at(2).dims, "every slot has its gate");
  return {{precision.activation, {inputs[1].dims.at(0), inputs.at(0).dims.at(1)}}};
}

void derive_moe_route(GradientBuilder& b) {
  const int dgate = b.output_gradient(1);
  if (dgate < 0) return;
  const int dlogits = b.gradient_like(b.input(0));
  b.emit(OpKind::moe_route_backward, b.node().attributes, {dgate, b.input(0), b.output(0)}, {dlogits});
  b.contribute(0, dlogits);
}

void derive_moe_balance_loss(GradientBuilder& b) {
  // A seed of backward, as the loss is: its weight in the sum of all losses is 1.
  const int dlogits = b.gradient_like(b.input(0));
  b.emit(OpKind::moe_balance_backward, b.node().attributes, {b.input(0), b.input(1), b.input(2)}, {dlogits});
  b.contribute(0, dlogits);
}

void derive_moe_dispatch(GradientBuilder& b) {
  const int dx = b.gradient_like(b.input(0));
  b.emit(OpKind::moe_dispatch_backward, b.node().attributes, {b.output_gradient(0), b.output(1)}, {dx});
  b.contribute(0, dx);
}

void derive_expert_linear(GradientBuilder& b) {
  const int dy = b.output_gradient(0), counts = b.input(2);
  b.emit(OpKind::expert_linear_backward_weight, b.node().attributes, {dy, b.input(0), counts},
         {b.weight_gradient(b.input(1))});
  const int dx = b.gradient_like(b.input(0));
  b.emit(OpKind::expert_linear_backward_input, b.node().attributes, {dy, b.input(1), counts}, {dx});
  b.contribute(0, dx);
}

void derive_moe_combine(GradientBuilder& b) {
  const int drows = b.gradient_like(b.input(0)), dgate = b.gradient_like(b.input(2));
  b.emit(OpKind::moe_combine_backward, b.node().attributes, {b.output_gradient(0), b.input(0), b.input(1), b.input(2)},
         {drows, dgate});
  b.contribute(0, drows);
  b.contribute(2, dgate);
}

double flops_of_expert_product(const OpInstance& op) {
  const TensorType& weight = op.kind == OpKind::expert_linear_backward_weight ? op.outputs[0] : op.inputs[1];
  return 2 * rows_in_use(op) * as_real(weight.shape[1]) * as_real(weight.shape[2]);
}

/// Operands of routed rows count with the rows in use, except that a whole output is written: zeros fill the rest.
double bytes_of_expert_product(const OpInstance& op) {
  const bool of_weight = op.kind == OpKind::expert_linear_backward_weight;
  const double share = rows_in_use(op) / as_real(op.inputs[0].shape[0]);
  const double rows = as_real(op.inputs[0].bytes()) * share;
  if (of_weight) {
    return rows + as_real(op.inputs[1].bytes()) * share + as_real(op.inputs[2].bytes() + 2 * op.outputs[0].bytes());
  }
  return rows + as_real(op.inputs[1].bytes() + op.inputs[2].bytes() + op.outputs[0].bytes());
}

/// A multiply-add for every element of the rows that are picked up or sent back.
double flops_of_combine(const OpInstance& op) {
  const TensorType& slot = op.kind == OpKind::moe_combine_backward ? op.inputs[2] : op.inputs[1];
  return 2 * as_real(slot.elements()) * as_real(op.inputs[0].shape[1]);
}

/// All operands, but of the rows that are picked from only those that are picked.
double bytes_of_routed_rows(const OpInstance& op) {
  const bool backward = op.kind == OpKind::moe_combine_backward;
  const TensorType &rows = op.inputs[backward ? 1 : 0], &slot = op.inputs[backward ? 2 : 1];
  const double picked = as_real(slot.elements()) * as_real(rows.shape[1] * size_of(rows.dtype));
  return bytes_of_operands(op) - as_real(rows.bytes()) + picked;
}

}  // namespace foresail::rules
