// Shapes and element types of outputs, with symbolic dimensions.
#include "core/error.h"
#include "ops/rules.h"

namespace foresail::rules {
namespace {

InferredTensor like(const GraphTensor& tensor) { return {tensor.dtype, tensor.dims}; }

InferredTensor row_statistic(const GraphTensor& tensor, const Precision& precision) {
  return {precision.statistic, {tensor.dims.at(0)}};
}

int64_t sequences_of(const GraphTensor& rows, const OpAttributes& attributes) {
  ensure(attributes.sequence_length > 0 && rows.dims.at(0).size % attributes.sequence_length == 0,
         "rows of an attention operator are whole sequences");
  return rows.dims[0].size / attributes.sequence_length;
}

void check_packed_heads(const GraphTensor& qkv, const OpAttributes& attributes) {
  ensure(qkv.dims.at(1).size == attributes.qkv_columns(), "packed rows hold q, k and v of all heads");
}

/// `dim` in units of the context-parallel degree.
Dim share_of(const Dim& dim, const OpAttributes& attributes) {
  ensure(attributes.context_parallel > 0 && dim.size % attributes.context_parallel == 0,
         "the context-parallel degree divides what it cuts");
  return {dim.name, dim.size / attributes.context_parallel};
}

Dim times_degree(const Dim& dim, const OpAttributes& attributes) {
  return {dim.name, dim.size * attributes.context_parallel};
}

void check_parts(const GraphTensor& parts, const OpAttributes& attributes) {
  ensure(parts.dims.size() == 3 && parts.dims[0].size == attributes.context_parallel,
         "the first dimension counts the context ranks");
}

/// lse [T/S,A,S].
InferredTensor attention_statistic(const GraphTensor& rows, const OpAttributes& attributes,
                                   const Precision& precision) {
  return {precision.statistic,
          {{DimName::sequences, sequences_of(rows, attributes)},
           {DimName::heads, attributes.heads},
           {DimName::position, attributes.sequence_length}}};
}

}  // namespace

Inferred infer_embedding(const Inputs& inputs, const OpAttributes&, const Precision& precision) {
  return {{precision.activation, {inputs.at(0).dims.at(0), inputs.at(1).dims.at(1)}}};
}

Inferred infer_same(const Inputs& inputs, const OpAttributes&, const Precision&) { return {like(inputs.at(0))}; }

Inferred infer_rms_norm(const Inputs& inputs, const OpAttributes&, const Precision& precision) {
  return {like(inputs.at(0)), row_statistic(inputs[0], precision)};
}

Inferred infer_layer_norm(const Inputs& inputs, const OpAttributes&, const Precision& precision) {
  return {like(inputs.at(0)), row_statistic(inputs[0], precision), row_statistic(inputs[0], precision)};
}

Inferred infer_add_rms_norm(const Inputs& inputs, const OpAttributes&, const Precision& precision) {
  return {like(inputs.at(0)), like(inputs[0]), row_statistic(inputs[0], precision)};
}

Inferred infer_add_layer_norm(const Inputs& inputs, const OpAttributes&, const Precision& precision) {
  return {like(inputs.at(0)), like(inputs[0]), row_statistic(inputs[0], precision),
          row_statistic(inputs[0], precision)};
}

Inferred infer_qk_norm(const Inputs& inputs, const OpAttributes& attributes, const Precision& precision) {
  check_packed_heads(inputs.at(0), attributes);
  const Dim heads{DimName::qk_heads, attributes.heads + attributes.kv_heads};
  return {like(inputs[0]), {precision.statistic, {inputs[0].dims.at(0), heads}}};
}

Inferred infer_linear(const Inputs& inputs, const OpAttributes&, const Precision& precision) {
  ensure(inputs.at(0).dims.at(1) == inputs.at(1).dims.at(1), "inner dimensions of a matrix product agree");
  return {{precision.activation, {inputs[0].dims[0], inputs[1].dims[0]}}};
}

Inferred infer_attention(const Inputs& inputs, const OpAttributes& attributes, const Precision& precision) {
  check_packed_heads(inputs.at(0), attributes);
  return {{precision.activation, {inputs[0].dims[0], {DimName::attention, attributes.o_columns()}}},
          attention_statistic(inputs[0], attributes, precision)};
}

Inferred infer_attention_scores(const Inputs& inputs, const OpAttributes& attributes, const Precision& precision) {
  check_packed_heads(inputs.at(0), attributes);
  const Dim position{DimName::position, attributes.sequence_length};
  return {{precision.activation,
           {{DimName::sequences, sequences_of(inputs[0], attributes)},
            {DimName::heads, attributes.heads},
            position,
            position}}};
}

Inferred infer_attention_context(const Inputs& inputs, const OpAttributes& attributes, const Precision& precision) {
  check_packed_heads(inputs.at(1), attributes);
  return {{precision.activation, {inputs[1].dims[0], {DimName::attention, attributes.o_columns()}}}};
}

Inferred infer_split_qkv(const Inputs& inputs, const OpAttributes& attributes, const Precision&) {
  check_packed_heads(inputs.at(0), attributes);
  const Dim& rows = inputs[0].dims[0];
  return {{inputs[0].dtype, {rows, {DimName::attention, attributes.q_columns()}}},
          {inputs[0].dtype, {rows, {DimName::kv, attributes.kv_columns()}}}};
}

Inferred infer_join_qkv(const Inputs& inputs, const OpAttributes& attributes, const Precision&) {
  ensure(inputs.at(0).dims.at(1).size == attributes.q_columns() &&
             inputs.at(1).dims.at(1).size == attributes.kv_columns() && inputs[0].dims[0] == inputs[1].dims[0],
         "q and kv hold the same rows of all heads");
  const Dim columns{DimName::qkv, attributes.qkv_columns()};
  return {{inputs[0].dtype, {inputs[0].dims[0], columns}}};
}

Inferred infer_ring_attention(const Inputs& inputs, const OpAttributes& attributes, const Precision& precision) {
  ensure(
      inputs.at(0).dims.at(1).size == attributes.q_columns() && inputs.at(1).dims.at(1).size == attributes.kv_columns(),
      "q and kv hold all heads");
  const Dim columns{DimName::attention, attributes.o_columns()};
  return {{inputs[0].dtype, {inputs[0].dims[0], columns}}, attention_statistic(inputs[0], attributes, precision)};
}

Inferred infer_heads_split(const Inputs& inputs, const OpAttributes& attributes, const Precision&) {
  check_packed_heads(inputs.at(0), attributes);
  const std::vector<Dim>& dims = inputs[0].dims;
  return {{inputs[0].dtype, {{DimName::fixed, attributes.context_parallel}, dims[0], share_of(dims[1], attributes)}}};
}

Inferred infer_heads_merge(const Inputs& inputs, const OpAttributes& attributes, const Precision&) {
  check_parts(inputs.at(0), attributes);
  const std::vector<Dim>& dims = inputs[0].dims;
  return {{inputs[0].dtype, {dims[1], times_degree(dims[2], attributes)}}};
}

Inferred infer_rows_merge(const Inputs& inputs, const OpAttributes& attributes, const Precision&) {
  check_parts(inputs.at(0), attributes);
  const std::vector<Dim>& dims = inputs[0].dims;
  return {{inputs[0].dtype, {times_degree(dims[1], attributes), dims[2]}}};
}

Inferred infer_rows_split(const Inputs& inputs, const OpAttributes& attributes, const Precision&) {
  const std::vector<Dim>& dims = inputs.at(0).dims;
  return {
      {inputs[0].dtype, {{DimName::fixed, attributes.context_parallel}, share_of(dims.at(0), attributes), dims.at(1)}}};
}

Inferred infer_swiglu(const Inputs& inputs, const OpAttributes&, const Precision& precision) {
  const Dim& columns = inputs.at(0).dims.at(1);
  const DimName half = columns.name == DimName::expert_gate_up ? DimName::expert_ffn : DimName::ffn;
  return {{precision.activation, {inputs[0].dims[0], {half, columns.size / 2}}}};
}

Inferred infer_cross_entropy_stats(const Inputs& inputs, const OpAttributes&, const Precision& precision) {
  return {{precision.statistic, {inputs.at(0).dims.at(0), {DimName::fixed, 3}}}};
}

Inferred infer_loss(const Inputs&, const OpAttributes&, const Precision&) {
  return {{DType::f64, {{DimName::fixed, 1}}}};
}

}  // namespace foresail::rules
