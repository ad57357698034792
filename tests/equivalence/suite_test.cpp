// Every rank of the world runs these tests together; rank 0 reports.
#include <gtest/gtest.h>

#include "tests/equivalence/suite.h"
#include "tests/equivalence/world.h"

namespace foresail::testing {
namespace {

constexpr size_t kSample = 12;

std::string text_of(const Findings& found) {
  std::string text;
  for (const std::string& line : found) text += "  " + line + "\n";
  return text;
}

void expect_equivalent(const std::vector<Task>& tasks) {
  const std::vector<Findings> found = judge_all(tasks, world());
  for (size_t i = 0; i < tasks.size(); ++i) EXPECT_TRUE(found[i].empty()) << tasks[i].name << "\n" << text_of(found[i]);
}

TEST(Strategies, TrainTheSameModelOnReference) { expect_equivalent(generated_tasks("reference")); }
TEST(Strategies, TrainTheSameModelOnCpu) { expect_equivalent(generated_tasks("cpu")); }
TEST(Sample, TrainsTheSameModelOnReference) { expect_equivalent(sample_of(generated_tasks("reference"), kSample)); }
TEST(Sample, TrainsTheSameModelOnCpu) { expect_equivalent(sample_of(generated_tasks("cpu"), kSample)); }

}  // namespace
}  // namespace foresail::testing
