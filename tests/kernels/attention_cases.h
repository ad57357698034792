// Attention and what surrounds it, for the tests of every back end: heads, rotations, context parallelism, latents.
#pragma once

#include <vector>

#include "tests/kernels/support.h"

namespace foresail::kernel_tests {

/// Part of all_test_cases.
std::vector<TestCase> attention_test_cases(DType dtype);

}  // namespace foresail::kernel_tests
