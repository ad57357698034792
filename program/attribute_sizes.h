// Attributes that describe the shapes of an operator's operands.
#pragma once

#include "ops/op.h"

namespace foresail {

/// Whether heads, sequence length, context-parallel degree and experts of an operator are those of its operands (ops/op.h). True for
/// kinds whose operands do not depend on them. The operands must agree with each other (operands_agree).
bool attributes_agree(const OpInstance& op);

}  // namespace foresail
