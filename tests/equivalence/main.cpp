// Runs the equivalence suite inside one resident mpirun: every rank executes the same tests in the same order. Rank 0
// reports. `--one DEVICE MODEL STRATEGY [BATCH]` judges a single strategy instead.
#include <gtest/gtest.h>

#include <iostream>

#include "comm/communicator.h"
#include "tests/equivalence/suite.h"
#include "tests/equivalence/world.h"

namespace foresail::testing {
namespace {

std::unique_ptr<Communicator> the_world;  // lives as long as main

}  // namespace

Communicator& world() { return *the_world; }

namespace {

int judge_one(int argc, char** argv) {
  const Task task = single_task(argv[2], argv[3], argv[4], argc > 5 ? argv[5] : "");
  const Findings found = judge_all(std::vector{task}, world()).at(0);
  if (world().rank() == 0) {
    std::cout << (found.empty() ? "equal   " : "DIFFERS ") << task.name << "\n";
    for (const std::string& line : found) std::cout << line << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace foresail::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  foresail::testing::the_world = foresail::make_mpi_communicator();
  if (foresail::testing::world().rank() != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
  }
  const bool one = argc > 4 && std::string(argv[1]) == "--one";
  const int result = one ? foresail::testing::judge_one(argc, argv) : RUN_ALL_TESTS();
  foresail::testing::the_world.reset();
  return result;
}
