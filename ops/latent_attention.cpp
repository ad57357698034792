// Rules of the operator that makes packed rows for attention from the products of multi-head latent attention
// (DeepSeek-V2, section 2.1.2).
#include "core/error.h"
#include "ops/rules.h"

namespace foresail::rules {

Inferred infer_latent_join(const Inputs& inputs, const OpAttributes& attributes, const Precision&) {
  const GraphTensor &q = inputs.at(0), &kv = inputs.at(1), &k_rope = inputs.at(2);
  const int64_t nope = attributes.head_dim - attributes.rope_dim;
  ensure(attributes.heads == attributes.kv_heads && attributes.rope_dim > 0 && nope >= 0,
         "every head has a key of its own, of which a part is rotated");
  ensure(q.dims.at(0) == kv.dims.at(0) && q.dims[0] == k_rope.dims.at(0),
         "queries, keys and values have the same rows");
  ensure(q.dims.at(1).size == attributes.q_columns() &&
             kv.dims.at(1).size == attributes.heads * (nope + attributes.value_width()) &&
             k_rope.dims.at(1).size == attributes.rope_dim,
         "the rows of latent attention hold all heads");
  return {{q.dtype, {q.dims[0], {DimName::qkv, attributes.qkv_columns()}}}};
}

void derive_latent_join(GradientBuilder& b) {
  const int dq = b.gradient_like(b.input(0)), dkv = b.gradient_like(b.input(1)), dk_rope = b.gradient_like(b.input(2));
  b.emit(OpKind::latent_join_backward, b.node().attributes, {b.output_gradient(0), b.input(3)}, {dq, dkv, dk_rope});
  b.contribute(0, dq);
  b.contribute(1, dkv);
  b.contribute(2, dk_rope);
}

}  // namespace foresail::rules
