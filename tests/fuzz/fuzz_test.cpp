// Damaged files are refused with one line that says what is wrong, or they are read: nothing else may happen. A failure
// prints the target and the seed; Mutator(seed) makes the same damage again.
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/philox.h"
#include "tests/fuzz/targets.h"

namespace foresail {
namespace {

struct Outcome {
  bool refused = false;
  std::string problem;  ///< what is wrong with how the reader answered; empty: nothing
};

Outcome outcome_of(const FuzzTarget& target, const std::string& content) {
  try {
    target.read(content);
    return {};
  } catch (const Error& error) {
    const std::string message = error.what();
    if (error.exit() != Exit::bad_input) return {true, "not the user's fault: " + message};
    if (message.empty() || message.find('\n') != std::string::npos) return {true, "not one line: " + message};
    return {true, ""};
  } catch (const std::exception& error) {
    return {true, std::string("escaped: ") + error.what()};
  }
}

void fuzz(const FuzzTarget& target, int mutations) {
  for (const std::string& example : target.examples) ASSERT_NO_THROW(target.read(example)) << target.name;
  int refused = 0, failures = 0;
  for (int i = 0; i < mutations && failures < 5; ++i) {
    const uint64_t seed = random_bits(20240501, 0, static_cast<uint64_t>(i));
    const std::string& example = target.examples[static_cast<size_t>(i) % target.examples.size()];
    const Outcome outcome = outcome_of(target, Mutator(seed).mutate(example, target.kind));
    EXPECT_EQ(outcome.problem, "") << target.name << ", mutation " << i << " of example "
                                   << static_cast<size_t>(i) % target.examples.size() << ", seed " << seed;
    failures += outcome.problem.empty() ? 0 : 1;
    refused += outcome.refused ? 1 : 0;
  }
  EXPECT_GT(refused, mutations / 10) << target.name << ": the damage does not reach the reader";
}

TEST(FuzzSample, FileReaders) {
  for (const FuzzTarget& target : file_targets()) fuzz(target, 300);
}
TEST(FuzzSample, TextReaders) {
  for (const FuzzTarget& target : text_targets()) fuzz(target, 300);
}
TEST(Fuzz, FileReaders) {
  for (const FuzzTarget& target : file_targets()) fuzz(target, 4000);
}
TEST(Fuzz, TextReaders) {
  for (const FuzzTarget& target : text_targets()) fuzz(target, 4000);
}

}  // namespace
}  // namespace foresail
