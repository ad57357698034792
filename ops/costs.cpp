// FLOPs and bytes of operators, as executed.
#include <algorithm>

#include "ops/rules.h"

namespace foresail::rules {
namespace {

/// Query-key pairs that a causal (and possibly windowed) attention computes for one whole sequence and head.
double attended_pairs(const OpAttributes& attributes) {
  const int64_t positions = attributes.sequence_length * attributes.context_parallel;
  const double length = static_cast<double>(positions);
  if (attributes.window <= 0 || attributes.window >= positions) return length * (length + 1) / 2;
  const double window = static_cast<double>(attributes.window);
  return window * (window + 1) / 2 + (length - window) * window;
}

double sequence_heads(const OpInstance& op) {
  const int64_t rows = op.kind == OpKind::attention_context ? op.inputs[1].shape[0] : op.inputs[0].shape[0];
  return static_cast<double>(rows) / static_cast<double>(op.attributes.sequence_length) *
         static_cast<double>(op.attributes.heads);
}

/// FLOPs per query-key pair of all sequences' heads, with so many products over the width of a key and of a value.
double attention_products(const OpInstance& op, double over_keys, double over_values) {
  const double key = static_cast<double>(op.attributes.head_dim);
  const double value = static_cast<double>(op.attributes.value_width());
  return 2 * sequence_heads(op) * (over_keys * key + over_values * value);
}

double squared_degree(const OpInstance& op) {
  const double degree = static_cast<double>(op.attributes.context_parallel);
  return degree * degree;
}

}  // namespace

double flops_of_product(const OpInstance& op) {
  // Whatever the roles: rows x columns of one operand times the dimension that the other adds.
  double rows = 0, columns = 0, inner = 0;
  const auto& a = op.inputs[0].shape;
  const auto& b = op.inputs[1].shape;
  switch (op.kind) {
    case OpKind::linear: rows = a[0], inner = a[1], columns = b[0]; break;
    case OpKind::linear_backward_input: rows = a[0], inner = a[1], columns = b[1]; break;
    default: rows = a[1], inner = a[0], columns = b[1]; break;
  }
  return 2 * rows * columns * inner;
}

double flops_of_attention(const OpInstance& op) { return attention_products(op, 1, 1) * attended_pairs(op.attributes); }

/// Scores again, dq and dk; dp and dv.
double flops_of_attention_backward(const OpInstance& op) {
  return attention_products(op, 3, 2) * attended_pairs(op.attributes);
}

/// One of C equal shares of this rank's share (one of C) of the whole: zigzag balances ranks and steps alike. A window
/// leaves the steps unequal; the sum over them stays right.
double flops_of_ring_step(const OpInstance& op) { return flops_of_attention(op) / squared_degree(op); }

double flops_of_ring_step_backward(const OpInstance& op) {
  return flops_of_attention_backward(op) / squared_degree(op);
}

double flops_of_score_product(const OpInstance& op) {
  const bool context = op.kind == OpKind::attention_context;
  const TensorType& scores = context ? op.inputs[0] : op.outputs[0];
  const int64_t width = context ? op.attributes.value_width() : op.attributes.head_dim;
  return 2 * static_cast<double>(scores.elements()) * static_cast<double>(width);
}

double flops_of_two_score_products(const OpInstance& op) {
  const bool context = op.kind == OpKind::attention_context_backward;
  const TensorType& scores = context ? op.inputs[1] : op.inputs[0];
  const int64_t width = context ? op.attributes.value_width() : op.attributes.head_dim;
  return 4 * static_cast<double>(scores.elements()) * static_cast<double>(width);
}

double flops_per_element(const OpInstance& op) {
  int64_t elements = 0;
  for (const auto& operand : op.inputs) elements = std::max(elements, operand.elements());
  for (const auto& operand : op.outputs) elements = std::max(elements, operand.elements());
  return static_cast<double>(elements);
}

double bytes_of_operands(const OpInstance& op) {
  double bytes = 0;
  const uint32_t accumulating = info(op.kind).accumulating_outputs;
  for (const auto& operand : op.inputs) bytes += static_cast<double>(operand.bytes());
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    bytes += static_cast<double>(op.outputs[i].bytes()) * ((accumulating >> i & 1) != 0 ? 2 : 1);
  }
  return bytes;
}

double bytes_of_embedding(const OpInstance& op) {
  return static_cast<double>(op.inputs[0].bytes()) + 2 * static_cast<double>(op.outputs[0].bytes());
}

double bytes_of_embedding_backward(const OpInstance& op) {
  return static_cast<double>(op.inputs[1].bytes()) + 3 * static_cast<double>(op.inputs[0].bytes());
}

}  // namespace foresail::rules
