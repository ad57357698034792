// Repeated measurements of one duration and what is reported of them.
#pragma once

#include <vector>

#include "spec/machine.h"

namespace foresail {

/// The value below which `fraction` of the values lie (linear between neighbours); 0 if there are none.
double percentile(std::vector<double> values, double fraction);
inline double median(std::vector<double> values) { return percentile(std::move(values), 0.5); }

/// Median; spread is half the 10-90 % range over the median.
Measurement summarise(const std::vector<double>& seconds);

}  // namespace foresail
