// Runs the checks of this folder on every rank of one mpirun; a failure on any rank fails the run.
#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "comm/communicator.h"

int main(int argc, char** argv) {
  const auto world = foresail::make_mpi_communicator();
  if (world->rank() != 0) testing::FLAGS_gtest_brief = true;
  testing::InitGoogleTest(&argc, argv);
  std::vector<int> everyone(static_cast<size_t>(world->size()));
  for (int rank = 0; rank < world->size(); ++rank) everyone[static_cast<size_t>(rank)] = rank;
  world->create_groups({everyone});

  int32_t failed = RUN_ALL_TESTS();
  world->all_reduce(&failed, 1, foresail::DType::i32, foresail::ReduceKind::max, 0);
  if (failed != 0 && world->rank() == 0) std::printf("checks failed on at least one of %d ranks\n", world->size());
  return failed;
}
