// Several threads of a rank at once, each with groups of its own, as the queues of a Program use them.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <thread>

#include "tests/comm/mpi/world.h"

namespace foresail {
namespace {

/// Three groups of all ranks, one per thread: equal members, so nothing but the GroupId keeps them apart.
struct QueuesOfWorld {
  std::unique_ptr<Communicator> comm;
  std::vector<int> everyone;

  explicit QueuesOfWorld(const MpiOptions& options) : comm(make_mpi_communicator(options)) {
    everyone = range_of_ranks(0, comm->size());
    comm->create_groups({everyone, everyone, everyone});
  }
};

void run_together(const std::vector<std::function<void()>>& bodies) {
  std::vector<std::thread> threads;
  for (const auto& body : bodies) threads.emplace_back(body);
  for (std::thread& thread : threads) thread.join();
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

constexpr int kRounds = 20;

/// Rounds whose results were wrong. Every thread has another stream of data, so that crossed wires show.
int wrong_reductions(QueuesOfWorld& world, GroupId group) {
  const int64_t size = world.comm->size();
  int wrong = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int stream = 100 * group + round;
    const int64_t count = 1 + (round * 379 + 977 * group) % 3000;
    auto data = contribution<float>(world.comm->rank(), count, stream);
    world.comm->all_reduce(data.data(), count, DType::f32, ReduceKind::sum, group);
    wrong += !same_bits(data, sum_in_rank_order<float>(world.everyone, count, stream));
    auto whole = contribution<double>(world.comm->rank(), count * size, stream);
    double* mine = whole.data() + world.comm->rank() * count;
    world.comm->reduce_scatter(whole.data(), mine, count, DType::f64, group);
    world.comm->all_gather(mine, whole.data(), count, DType::f64, group);
    wrong += !same_bits(whole, sum_in_rank_order<double>(world.everyone, count * size, stream));
  }
  return wrong;
}

int wrong_exchanges(QueuesOfWorld& world, GroupId group) {
  const int size = world.comm->size(), rank = world.comm->rank();
  int wrong = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t count = 1 + (round * 997) % 5000;
    const auto input = contribution<float>(rank, count * size, round);
    std::vector<float> shifted(input.size()), exchanged(input.size());
    world.comm->ring_shift(input.data(), shifted.data(), count * size * 4, group);
    wrong += !same_bits(shifted, contribution<float>((rank + size - 1) % size, count * size, round));
    world.comm->all_to_all(input.data(), exchanged.data(), count, DType::f32, group);
    for (int from = 0; from < size; ++from) {
      const auto theirs = contribution<float>(from, count * size, round);
      wrong += std::memcmp(exchanged.data() + from * count, theirs.data() + rank * count,
                           static_cast<size_t>(count) * 4) != 0;
    }
  }
  return wrong;
}

int wrong_messages(QueuesOfWorld& world) {
  const int size = world.comm->size(), rank = world.comm->rank();
  int wrong = 0;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t count = 1 + (round * 1999) % 30000;  // eager and rendezvous
    const auto outgoing = contribution<float>(rank, count, 7000 + round);
    std::vector<float> incoming(static_cast<size_t>(count));
    const auto sending = world.comm->send(outgoing.data(), count * 4, (rank + 1) % size, round);
    world.comm->wait(world.comm->receive(incoming.data(), count * 4, (rank + size - 1) % size, round));
    world.comm->wait(sending);
    wrong += !same_bits(incoming, contribution<float>((rank + size - 1) % size, count, 7000 + round));
  }
  return wrong;
}

TEST(Threads, MayUseDifferentGroupsAndMessagesAtTheSameTime) {
  for (const MpiOptions& options : {MpiOptions{true, 4096}, MpiOptions{false, 4096}}) {
    QueuesOfWorld world(options);
    ASSERT_TRUE(world.comm->concurrent()) << "Debian's Open MPI grants MPI_THREAD_MULTIPLE";
    int wrong[4] = {-1, -1, -1, -1};
    run_together({[&] { wrong[0] = wrong_reductions(world, 0); }, [&] { wrong[1] = wrong_reductions(world, 1); },
                  [&] { wrong[2] = wrong_exchanges(world, 2); }, [&] { wrong[3] = wrong_messages(world); }});
    for (const int each : wrong) EXPECT_EQ(each, 0);
  }
}

}  // namespace
}  // namespace foresail
