// The generated strategies and the planted faults of the equivalence suite.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "tests/equivalence/harness.h"

namespace foresail::testing {

/// An experiment and the name under which failures are reported.
struct SuiteCase {
  std::string name;
  Experiment experiment;
};

inline void PrintTo(const SuiteCase& which, std::ostream* out) { *out << which.name; }

/// Every model x mesh (1 to 4 ranks) x recompute preset, with micro-batches, accumulation, fusion and attention varied
/// along the way.
std::vector<SuiteCase> generated_cases(const std::string& device);

/// One rank, one micro-batch size, fused, nothing recomputed: what every case of the same model is compared with.
Experiment baseline_of(const Experiment& experiment);

/// A fault and the case in which it must be noticed.
struct PlantedFault {
  Fault fault;
  SuiteCase where;
};
inline void PrintTo(const PlantedFault& planted, std::ostream* out) { *out << planted.fault.name; }

std::vector<PlantedFault> planted_faults(const std::string& device);

}  // namespace foresail::testing
