// Runs the equivalence suite inside one resident mpirun: every rank executes the same tests in the same order, meshes
// smaller than the world leave the other ranks waiting. Rank 0 reports.
#include <gtest/gtest.h>

#include <iostream>
#include <map>

#include "comm/communicator.h"
#include "tests/equivalence/judge.h"
#include "tests/equivalence/suite.h"

namespace foresail::testing {
namespace {

std::unique_ptr<Communicator> world;  // lives as long as main

std::string text_of(const std::vector<std::string>& lines) {
  std::string text;
  for (size_t i = 0; i < lines.size() && i < 12; ++i) text += "  " + lines[i] + "\n";
  return text;
}

/// An error on one rank would leave the others waiting: it ends them all, with its message.
Outcome run_together(const Experiment& experiment, const Fault& fault = {}) {
  try {
    return run_experiment(experiment, *world, fault);
  } catch (const std::exception& error) {
    world->abort(error.what());
  }
}

const Outcome& baseline_for(const Experiment& experiment) {
  static std::map<std::string, Outcome> cache;
  const std::string key = experiment.device + "/" + experiment.model.name;
  auto found = cache.find(key);
  if (found == cache.end()) found = cache.emplace(key, run_together(baseline_of(experiment))).first;
  return found->second;
}

class Strategies : public ::testing::TestWithParam<SuiteCase> {};

TEST_P(Strategies, TrainTheSameModelAsOneRank) {
  const SuiteCase& which = GetParam();
  const Outcome& baseline = baseline_for(which.experiment);
  const Outcome outcome = run_together(which.experiment);
  const auto found = differences(outcome, baseline, which.experiment);
  EXPECT_TRUE(found.empty()) << which.name << "\n" << text_of(found);
}

class PlantedFaults : public ::testing::TestWithParam<PlantedFault> {};

TEST_P(PlantedFaults, AreNoticed) {
  const PlantedFault& planted = GetParam();
  const Outcome& baseline = baseline_for(planted.where.experiment);
  ASSERT_TRUE(differences(run_together(planted.where.experiment), baseline, planted.where.experiment).empty())
      << "without the fault the case must pass";
  const Outcome outcome = run_together(planted.where.experiment, planted.fault);
  EXPECT_FALSE(differences(outcome, baseline, planted.where.experiment).empty()) << planted.fault.name;
}

INSTANTIATE_TEST_SUITE_P(Reference, Strategies, ::testing::ValuesIn(generated_cases("reference")));
INSTANTIATE_TEST_SUITE_P(Cpu, Strategies, ::testing::ValuesIn(generated_cases("cpu")));
INSTANTIATE_TEST_SUITE_P(Reference, PlantedFaults, ::testing::ValuesIn(planted_faults("reference")));
INSTANTIATE_TEST_SUITE_P(Cpu, PlantedFaults, ::testing::ValuesIn(planted_faults("cpu")));

}  // namespace

}  // namespace foresail::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  using foresail::testing::world;
  world = foresail::make_mpi_communicator();
  if (world->rank() != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
  }
  const int result = RUN_ALL_TESTS();
  world.reset();
  return result;
}
