// Attributes of operators in a dumped Program.
#pragma once

#include "core/json.h"
#include "ops/op.h"

namespace foresail {

/// Only what differs from the default is written.
Json json_of(const OpAttributes& attributes);
/// Throws bad_input for an unknown key or a value that no Program has.
OpAttributes attributes_from(const JsonObject& object);

}  // namespace foresail
