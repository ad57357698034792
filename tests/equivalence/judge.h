// Whether two outcomes are the same training: per tensor in global coordinates, as docs/equivalence.md states.
#pragma once

#include <string>
#include <vector>

#include "tests/equivalence/harness.h"

namespace foresail::testing {

struct Tolerance {
  double gradient = 1e-5, update = 1e-4, loss = 1e-6, grad_norm = 1e-5;
  double floor = 1e-7;  ///< of the global norm
};

Tolerance tolerance_for(const Experiment& experiment);

/// What differs, empty if equivalent. Tensors (or row ranges of them) whose gradient is zero in exact arithmetic are
/// judged by the floor alone.
std::vector<std::string> differences(const Outcome& outcome, const Outcome& baseline, const Experiment& experiment);

}  // namespace foresail::testing
