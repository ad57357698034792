// Concurrent queues over MPI: the overlap Program on every rank of one mpirun. A failure on any rank fails the run.
#include <gtest/gtest.h>

#include <cstdio>

#include "core/error.h"
#include "tests/executor/overlap_program.h"

namespace foresail::testing {
namespace {

std::unique_ptr<Communicator> world;  // lives as long as main

/// Context-parallel pairs; gradients whole on all ranks, or sharded over each pair.
std::vector<Mesh> meshes_of(int ranks) {
  Mesh mesh;
  mesh.cp = ranks % 2 == 0 ? 2 : 1;
  mesh.dp = ranks / mesh.cp;
  Mesh sharded = mesh;
  sharded.shard = mesh.cp;
  return {mesh, sharded};
}

void expect_equal_bits(const Mesh& mesh, int64_t elements) {
  const Program program = overlap_program(mesh, {.layers = 4, .micro_batches = 3, .elements = elements});
  const auto run = [&](bool serial) {
    HookedDevice device;
    QueueMode mode{};
    auto arena = run_overlap(program, *world, device, 15, {.serialise_queues = serial, .dependencies = {}}, &mode);
    EXPECT_EQ(mode, serial ? QueueMode::serial : QueueMode::concurrent);
    return arena;
  };
  const auto expected = run(true);
  for (int repetition = 0; repetition < 3; ++repetition) EXPECT_TRUE(run(false) == expected);
}

TEST(OverlapOverMpi, ConcurrentQueuesGiveTheBitsOfSerialOnes) {
  for (const Mesh& mesh : meshes_of(world->size())) {
    expect_equal_bits(mesh, 48);
    expect_equal_bits(mesh, 24'000);  // reductions in pieces, messages by rendezvous
  }
}

}  // namespace
}  // namespace foresail::testing

int main(int argc, char** argv) {
  using foresail::testing::world;
  world = foresail::make_mpi_communicator();
  if (world->rank() != 0) testing::FLAGS_gtest_brief = true;
  testing::InitGoogleTest(&argc, argv);
  int32_t failed = 1;
  try {
    failed = RUN_ALL_TESTS();
  } catch (const std::exception& error) {
    world->abort(error.what());
  }
  std::vector<int> everyone;
  for (int rank = 0; rank < world->size(); ++rank) everyone.push_back(rank);
  world->create_groups({everyone});
  world->all_reduce(&failed, 1, foresail::DType::i32, foresail::ReduceKind::max, 0);
  if (failed != 0 && world->rank() == 0) std::printf("checks failed on at least one of %d ranks\n", world->size());
  world.reset();
  return failed;
}
