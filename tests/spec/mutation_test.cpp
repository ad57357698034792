// Damaged files: whatever bytes a reader is given, it returns a value that it can write again, or throws an Error of one
// line. Anything else (another exception, a crash, a sanitizer's report) fails.
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>

#include "core/error.h"
#include "spec/machine.h"
#include "spec/plan.h"
#include "spec/strategy.h"

namespace foresail {
namespace {

constexpr int kMutants = 3000;

std::string mutant_of(std::string text, std::mt19937_64& random) {
  static const std::string kTokens[] = {"-1",      "1e999", "null", "{}", "[", "\"", "99999999999999999999",
                                        "\\u0000", "0.5",   "true"};
  const int changes = 1 + static_cast<int>(random() % 3);
  for (int i = 0; i < changes && !text.empty(); ++i) {
    const size_t at = random() % text.size();
    switch (random() % 5) {
      case 0: text[at] = static_cast<char>(random()); break;
      case 1: text.erase(at, 1 + random() % 40); break;
      case 2: text.insert(at, kTokens[random() % std::size(kTokens)]); break;
      case 3: text.insert(at, text.substr(random() % text.size(), random() % 60)); break;
      default: {
        // A number replaced by a hostile one: random bytes alone seldom leave the JSON valid.
        const size_t digit = text.find_first_of("0123456789", at);
        if (digit == std::string::npos) break;
        size_t end = text.find_first_not_of("0123456789.e+-", digit);
        text.replace(digit, std::min(end, text.size()) - digit, kTokens[random() % std::size(kTokens)]);
      }
    }
  }
  return text;
}

/// `round_trip` reads a text and writes what it read.
void expect_value_or_error(const std::string& seed_text,
                           const std::function<std::string(const std::string&)>& round_trip) {
  std::mt19937_64 random(20261130);
  ASSERT_NO_THROW(round_trip(seed_text));
  int refused = 0;
  for (int i = 0; i < kMutants; ++i) {
    const std::string text = mutant_of(seed_text, random);
    try {
      const std::string written = round_trip(text);
      EXPECT_EQ(round_trip(written), written) << text;
    } catch (const Error& error) {
      ++refused;
      EXPECT_EQ(error.exit(), Exit::bad_input) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
  EXPECT_GT(refused, kMutants / 10) << "the mutations hardly damage anything";
  EXPECT_LT(refused, kMutants) << "the mutations never leave a valid file";
}

TEST(Mutants, OfAJobAreReadOrRefused) {
  expect_value_or_error(job_to_json(Job{}),
                        [](const std::string& text) { return job_to_json(job_from_json(text, "job")); });
}

TEST(Mutants, OfAMachineAreReadOrRefused) {
  Machine machine = load_machine("dgx-a100-80gb");
  ProfileTable table;
  table.ops["gemm"] = {1e-3, 0.1, 5};
  table.collectives["all_reduce/2/64"] = {1e-4, 0.1, 5};
  machine.tables.push_back(table);
  machine.workspace_bytes["gemm"] = 64;
  expect_value_or_error(machine_to_json(machine),
                        [](const std::string& text) { return machine_to_json(machine_from_json(text, "machine")); });
}

TEST(Mutants, OfAStackAreReadOrRefused) {
  expect_value_or_error(stack_to_json(load_stack("megatron-2021")),
                        [](const std::string& text) { return stack_to_json(stack_from_json(text, "stack")); });
}

TEST(Mutants, OfAPlanAreReadOrRefused) {
  Plan plan;
  plan.model_config = "{}";
  plan.program_digests = {std::string(32, '0')};
  plan.predicted.peak_bytes_by_stage = {1};
  expect_value_or_error(plan_to_json(plan),
                        [](const std::string& text) { return plan_to_json(plan_from_json(text, "plan")); });
}

TEST(Mutants, OfAStrategyTextAreReadOrRefused) {
  const auto rewrite = [](const std::string& text) { return to_text(parse_strategy(text).strategy); };
  expect_value_or_error(to_text(Strategy{}), rewrite);
  expect_value_or_error(
      to_text(
          parse_strategy("recompute_layers=0-3:selective+up/5:none,stage_layers=3+2,zero_group=2,context=all_to_all,"
                         "schedule=zb-v,bucket_bytes=4096,overlap=true,reduce_dtype=bf16,accumulate_dtype=f64")
              .strategy),
      rewrite);
}

}  // namespace
}  // namespace foresail
