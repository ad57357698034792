// Operands stored in 16 bits on a back end whose kernels compute in f32: they are widened, computed with and rounded.
#pragma once

#include "ops/op.h"

namespace foresail {

/// True if some operand is f16 or bf16 and more than its bytes matter.
bool has_rounded_storage(const OpInstance& op);

/// `op` with f32 in place of f16 and bf16: what is computed behind the widening.
OpInstance widened(const OpInstance& op);

/// Bytes that widening and rounding read and write beside the operator itself.
double bytes_of_rounding(const OpInstance& op);

}  // namespace foresail
