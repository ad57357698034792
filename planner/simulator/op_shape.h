// Op signatures read back into numbers: what kind it is, how much work it does and where its shape lies, so that a cost
// table can be interpolated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/op.h"

namespace foresail {

struct OpShape {
  OpKind kind{};
  std::string family;  ///< what must be equal for one op to say something about another: kind, dtype, switches
  double work = 0;     ///< what the duration is proportional to: FLOPs of products and attention, else elements
  std::vector<double> position;  ///< log2 of the sizes that the rate depends on
  std::vector<double> terms;     ///< what the duration may grow with: 1, elements of each operand, work
};

/// Reads "linear/f32/2048x384,1152x384->2048x1152" and its kin (`signature`). Empty if the text is no signature.
std::optional<OpShape> parse_signature(std::string_view text);

}  // namespace foresail
