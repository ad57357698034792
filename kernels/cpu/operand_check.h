// Checks the operands of an operator against a one-line description of what a kernel accepts.
#pragma once

#include <string>
#include <string_view>

#include "ops/op.h"

namespace foresail {

/// `pattern`: "tokens:i32[T] table[V,H] -> y[T,H]". Inputs, an arrow, outputs. An operand is NAME [:DTYPE] [?] [DIMS]:
/// the dtype is f32 unless said ("any" takes every dtype, "real" f32 and f64), '?' marks an operand that may be missing (the last of its
/// side). A dimension is a number, a letter (equal wherever it appears) or twice a letter (2F); [n*] is any shape of n
/// elements. Known from the attributes: S, A, G, D, and QKV = (A + 2 G) D, AD = A D, GD = G D, AG = A + G, D/2, C and SC = S C. T = B S
/// where B appears. Throws bad_input naming operator, operand and cause ("cpu has no kernel for rope in f16").
void check_operands(const OpInstance& op, std::string_view pattern);

/// Throws bad_input unless `rows` rows have places in the batch (kernels/row_map.h).
void check_row_map(const OpInstance& op, int64_t rows);

/// Throws bad_input that names the operator and the cause.
[[noreturn]] void refuse_operator(const OpInstance& op, std::string cause);

}  // namespace foresail
