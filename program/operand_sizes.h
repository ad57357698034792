// The operand conventions of ops/op.h as patterns that a static check can hold a Program to, for every kind of operator and
// so also for those without shape inference (backward, loss, optimizer).
#pragma once

#include <string_view>

#include "ops/op.h"

namespace foresail {

/// "T H, H -> T H, T": a letter is one size throughout; a number is itself, "2F" twice F; P is the tensor-parallel degree; "*" is
/// one shape throughout. Alternatives are separated by "|".
std::string_view operand_pattern(OpKind kind);

/// Whether the shapes of an operator's inputs and outputs follow its pattern.
bool operands_agree(const OpInstance& op, int64_t tensor_parallel);

}  // namespace foresail
