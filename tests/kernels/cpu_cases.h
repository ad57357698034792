// Larger operators than those of support.h: big enough for every thread to get a share, with sizes that divide by
// nothing.
#pragma once

#include <vector>

#include "core/parallel.h"
#include "tests/kernels/support.h"

namespace foresail::kernel_tests {

/// Runs a test with a team of its own and restores the one before.
class Team {
 public:
  explicit Team(int threads) : before_(thread_count()) { set_thread_count(threads); }
  ~Team() { set_thread_count(before_); }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

 private:
  int before_;
};

/// Largest error of a cpu kernel relative to the largest element of an output. Reasons are in cpu_cases.cpp.
double cpu_tolerance(OpKind kind);

/// Calls of operator new by this process.
int64_t allocations_so_far();

/// One case or more of every kind, in f32.
std::vector<TestCase> large_test_cases();

}  // namespace foresail::kernel_tests
