// Mixture of experts for the tests of every back end: routers of several kinds, buffers that overflow, experts without
// rows.
#pragma once

#include <vector>

#include "tests/kernels/support.h"

namespace foresail::kernel_tests {

/// Small operators, part of all_test_cases.
std::vector<TestCase> expert_test_cases(DType dtype);
/// Larger ones, part of large_test_cases.
std::vector<TestCase> large_expert_cases();

/// Makes random operands those of a mixture of experts: experts chosen by a router, slots given by a dispatch, counts of
/// runs that fit. Rows of buffers that are not in use become NaN: nobody may read them.
void fix_expert_operands(const TestCase& test, Operands& operands, uint64_t seed);

}  // namespace foresail::kernel_tests
