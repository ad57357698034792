#include "ops/rounded_storage.h"

#include <algorithm>

#include "core/float16.h"
#include "ops/op_table.h"

namespace foresail {
namespace {

bool is_rounded(const TensorType& type) { return is_16_bit_float(type.dtype); }

}  // namespace

bool has_rounded_storage(const OpInstance& op) {
  if (op.kind == OpKind::fill_zero) return false;  // zero is all bits clear in every type
  return std::any_of(op.inputs.begin(), op.inputs.end(), is_rounded) ||
         std::any_of(op.outputs.begin(), op.outputs.end(), is_rounded);
}

OpInstance widened(const OpInstance& op) {
  OpInstance wide = op;
  for (auto* side : {&wide.inputs, &wide.outputs}) {
    for (TensorType& type : *side) {
      if (is_rounded(type)) type.dtype = DType::f32;
    }
  }
  return wide;
}

double bytes_of_rounding(const OpInstance& op) {
  const auto passes = [](const TensorType& type) {
    return is_rounded(type) ? static_cast<double>(type.elements() * (size_of(type.dtype) + size_of(DType::f32))) : 0;
  };
  double bytes = 0;
  for (const TensorType& type : op.inputs) bytes += passes(type);
  const uint32_t accumulating = info(op.kind).accumulating_outputs;
  for (size_t i = 0; i < op.outputs.size(); ++i) bytes += (accumulating >> i & 1u ? 2 : 1) * passes(op.outputs[i]);
  return bytes;
}

}  // namespace foresail
