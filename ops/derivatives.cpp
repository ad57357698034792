// Backward rules: which operators yield the gradients of a forward node's inputs, and what they read. A forward tensor
// that a rule reads becomes a saved tensor.
#include "ops/rules.h"

namespace foresail::rules {
namespace {

/// Of an operator that only moves elements: its inverse moves their gradients back.
void derive_by_inverse(GradientBuilder& b, OpKind inverse) {
  const int dx = b.gradient_like(b.input(0));
  b.emit(inverse, b.node().attributes, {b.output_gradient(0)}, {dx});
  b.contribute(0, dx);
}

}  // namespace

void derive_embedding(GradientBuilder& b) {
  b.emit(OpKind::embedding_backward, b.node().attributes, {b.output_gradient(0), b.input(0)},
         {b.weight_gradient(b.input(1))});
}

void derive_position_embedding(GradientBuilder& b) {
  const int dy = b.output_gradient(0);
  b.emit(OpKind::position_embedding_backward, b.node().attributes, {dy}, {b.weight_gradient(b.input(1))});
  b.contribute(0, dy);
}

void derive_rms_norm(GradientBuilder& b) {
  const int dx = b.gradient_like(b.input(0));
  b.emit(OpKind::rms_norm_backward, b.node().attributes, {b.output_gradient(0), b.input(0), b.input(1), b.output(1)},
         {dx, b.weight_gradient(b.input(1))});
  b.contribute(0, dx);
}

void derive_layer_norm(GradientBuilder& b) {
  const int dx = b.gradient_like(b.input(0));
  b.emit(OpKind::layer_norm_backward, b.node().attributes,
         {b.output_gradient(0), b.input(0), b.input(1), b.output(1), b.output(2)},
         {dx, b.weight_gradient(b.input(1)), b.weight_gradient(b.input(2))});
  b.contribute(0, dx);
}

void derive_add_rms_norm(GradientBuilder& b) {
  const int dsum = b.gradient_like(b.output(0));
  std::vector<int> inputs{b.output_gradient(1), b.output(0), b.input(2), b.output(2)};
  if (const int residual = b.output_gradient(0); residual >= 0) inputs.push_back(residual);
  b.emit(OpKind::rms_norm_backward, b.node().attributes, inputs, {dsum, b.weight_gradient(b.input(2))});
  b.contribute(0, dsum);
  b.contribute(1, dsum);
}

void derive_add_layer_norm(GradientBuilder& b) {
  const int dsum = b.gradient_like(b.output(0));
  std::vector<int> inputs{b.output_gradient(1), b.output(0), b.input(2), b.output(2), b.output(3)};
  if (const int residual = b.output_gradient(0); residual >= 0) inputs.push_back(residual);
  b.emit(OpKind::layer_norm_backward, b.node().attributes, inputs,
         {dsum, b.weight_gradient(b.input(2)), b.weight_gradient(b.input(3))});
  b.contribute(0, dsum);
  b.contribute(1, dsum);
}

void derive_qk_norm(GradientBuilder& b) {
  const int dqkv = b.gradient_like(b.input(0));
  b.emit(OpKind::qk_norm_backward, b.node().attributes,
         {b.output_gradient(0), b.input(0), b.input(1), b.input(2), b.output(1)},
         {dqkv, b.weight_gradient(b.input(1)), b.weight_gradient(b.input(2))});
  b.contribute(0, dqkv);
}

void derive_linear(GradientBuilder& b) {
  const int dy = b.output_gradient(0);
  b.emit(OpKind::linear_backward_weight, b.node().attributes, {dy, b.input(0)}, {b.weight_gradient(b.input(1))});
  if (b.node().inputs.size() > 2) {
    b.emit(OpKind::bias_backward, b.node().attributes, {dy}, {b.weight_gradient(b.input(2))});
  }
  const int dx = b.gradient_like(b.input(0));
  b.emit(OpKind::linear_backward_input, b.node().attributes, {dy, b.input(1)}, {dx});
  b.contribute(0, dx);
}

void derive_bias_add(GradientBuilder& b) {
  const int dy = b.output_gradient(0);
  b.emit(OpKind::bias_backward, b.node().attributes, {dy}, {b.weight_gradient(b.input(1))});
  b.contribute(0, dy);
}

void derive_rope(GradientBuilder& b) {
  const int dx = b.gradient_like(b.input(0));
  b.emit(OpKind::rope_backward, b.node().attributes, {b.output_gradient(0), b.input(1)}, {dx});
  b.contribute(0, dx);
}

void derive_attention(GradientBuilder& b) {
  const int dqkv = b.gradient_like(b.input(0));
  b.emit(OpKind::attention_backward, b.node().attributes, {b.output_gradient(0), b.input(0), b.output(0), b.output(1)},
         {dqkv});
  b.contribute(0, dqkv);
}

void derive_attention_scores(GradientBuilder& b) {
  // Runs after attention_context_backward in backward order: adds the q and k parts to the gradient that holds v's.
  b.emit(OpKind::attention_scores_backward, b.node().attributes, {b.output_gradient(0), b.input(0)},
         {b.contributed(0)});
}

void derive_attention_softmax(GradientBuilder& b) {
  const int dscores = b.gradient_like(b.input(0));
  b.emit(OpKind::attention_softmax_backward, b.node().attributes, {b.output_gradient(0), b.output(0)}, {dscores});
  b.contribute(0, dscores);
}

void derive_attention_context(GradientBuilder& b) {
  const int dp = b.gradient_like(b.input(0));
  const int dqkv = b.gradient_like(b.input(1));
  b.emit(OpKind::attention_context_backward, b.node().attributes, {b.output_gradient(0), b.input(0), b.input(1)},
         {dp, dqkv});
  b.contribute(0, dp);
  b.contribute(1, dqkv);
}

void derive_split_qkv(GradientBuilder& b) {
  const int dqkv = b.gradient_like(b.input(0));
  b.emit(OpKind::join_qkv, b.node().attributes, {b.output_gradient(0), b.output_gradient(1)}, {dqkv});
  b.contribute(0, dqkv);
}

void derive_join_qkv(GradientBuilder& b) {
  const int dq = b.gradient_like(b.input(0)), dkv = b.gradient_like(b.input(1));
  b.emit(OpKind::split_qkv, b.node().attributes, {b.output_gradient(0)}, {dq, dkv});
  b.contribute(0, dq);
  b.contribute(1, dkv);
}

void derive_heads_split(GradientBuilder& b) { derive_by_inverse(b, OpKind::heads_merge); }
void derive_heads_merge(GradientBuilder& b) { derive_by_inverse(b, OpKind::heads_split); }
void derive_rows_merge(GradientBuilder& b) { derive_by_inverse(b, OpKind::rows_split); }
void derive_rows_split(GradientBuilder& b) { derive_by_inverse(b, OpKind::rows_merge); }

void derive_gelu(GradientBuilder& b) {
  const int dx = b.gradient_like(b.input(0));
  b.emit(OpKind::gelu_backward, b.node().attributes, {b.output_gradient(0), b.input(0)}, {dx});
  b.contribute(0, dx);
}

void derive_bias_gelu(GradientBuilder& b) {
  const int dx = b.gradient_like(b.input(0));
  b.emit(OpKind::bias_gelu_backward, b.node().attributes, {b.output_gradient(0), b.input(0), b.input(1)}, {dx});
  b.emit(OpKind::bias_backward, b.node().attributes, {dx}, {b.weight_gradient(b.input(1))});
  b.contribute(0, dx);
}

void derive_swiglu(GradientBuilder& b) {
  const int dgu = b.gradient_like(b.input(0));
  b.emit(OpKind::swiglu_backward, b.node().attributes, {b.output_gradient(0), b.input(0)}, {dgu});
  b.contribute(0, dgu);
}

void derive_add(GradientBuilder& b) {
  b.contribute(0, b.output_gradient(0));
  b.contribute(1, b.output_gradient(0));
}

void derive_copy(GradientBuilder& b) { b.contribute(0, b.output_gradient(0)); }

void derive_dropout(GradientBuilder& b) {
  const int dx = b.gradient_like(b.input(0));
  b.emit(OpKind::dropout, b.node().attributes, {b.output_gradient(0)}, {dx});  // the mask is a function of position
  b.contribute(0, dx);
}

void derive_loss(GradientBuilder& b) {
  // The seed of backward: logits become their own gradient, and the loss is accumulated on the way.
  const int dlogits = b.gradient_like(b.input(0));
  b.emit(OpKind::cross_entropy_backward, b.node().attributes, {b.input(0), b.input(1), b.input(2)},
         {dlogits, b.output(0)});
  b.contribute(0, dlogits);
}

}  // namespace foresail::rules
