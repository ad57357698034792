// Point to point over MPI: order, tags, sizes, many operations in flight, and what is refused.
#include <gtest/gtest.h>

#include <numeric>

#include "comm/mpi/request_table.h"
#include "core/error.h"
#include "tests/comm/mpi/world.h"

namespace foresail {
namespace {

TEST(Messages, ARingPassesBuffersOfAnySize) {
  World world(MpiOptions{});
  const int size = world.comm->size();
  if (size == 1) GTEST_SKIP() << "needs two ranks";
  const int next = (world.comm->rank() + 1) % size, previous = (world.comm->rank() + size - 1) % size;
  for (int64_t count : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{500001}}) {
    const auto outgoing = contribution<float>(world.comm->rank(), count);
    std::vector<float> incoming(static_cast<size_t>(count));
    const auto receiving = world.comm->receive(incoming.data(), count * 4, previous, 3);
    const auto sending = world.comm->send(outgoing.data(), count * 4, next, 3);
    world.comm->wait(receiving);
    world.comm->wait(sending);
    EXPECT_EQ(incoming, contribution<float>(previous, count));
  }
}

TEST(Messages, WithOneTagTheyArriveInTheOrderInWhichTheyWereSent) {
  World world(MpiOptions{});
  if (world.comm->size() == 1) GTEST_SKIP() << "needs two ranks";
  constexpr int kMessages = 50;
  std::vector<int32_t> values(kMessages);
  std::vector<Communicator::Request> requests;
  if (world.comm->rank() == 0) {
    std::iota(values.begin(), values.end(), 100);
    for (int32_t& value : values) requests.push_back(world.comm->send(&value, 4, 1, 7));
  } else if (world.comm->rank() == 1) {
    for (int32_t& value : values) requests.push_back(world.comm->receive(&value, 4, 0, 7));
  }
  for (auto request : requests) world.comm->wait(request);
  if (world.comm->rank() == 1) {
    for (int i = 0; i < kMessages; ++i) EXPECT_EQ(values[static_cast<size_t>(i)], 100 + i);
  }
}

TEST(Messages, TagsKeepStreamsApartWhateverTheOrder) {
  World world(MpiOptions{});
  if (world.comm->size() == 1) GTEST_SKIP() << "needs two ranks";
  int32_t first = 1, second = 2;
  if (world.comm->rank() == 0) {
    const auto a = world.comm->send(&first, 4, 1, 10);
    const auto b = world.comm->send(&second, 4, 1, 20);
    world.comm->wait(a);
    world.comm->wait(b);
  } else if (world.comm->rank() == 1) {
    int32_t of_twenty = 0, of_ten = 0;
    world.comm->wait(world.comm->receive(&of_twenty, 4, 0, 20));
    world.comm->wait(world.comm->receive(&of_ten, 4, 0, 10));
    EXPECT_EQ(of_twenty, 2);
    EXPECT_EQ(of_ten, 1);
  }
}

TEST(Messages, MoreOperationsThanSlotsMayBeInFlight) {
  World world(MpiOptions{});
  if (world.comm->size() == 1) GTEST_SKIP() << "needs two ranks";
  constexpr int kMessages = 1500;  // the table starts with 1024
  std::vector<int32_t> values(kMessages, -1);
  std::vector<Communicator::Request> requests;
  if (world.comm->rank() == 1) {
    for (int32_t& value : values) requests.push_back(world.comm->receive(&value, 4, 0, 5));
  } else if (world.comm->rank() == 0) {
    std::iota(values.begin(), values.end(), 0);
    for (int32_t& value : values) requests.push_back(world.comm->send(&value, 4, 1, 5));
  }
  for (auto request : requests) world.comm->wait(request);
  if (world.comm->rank() == 1) {
    EXPECT_EQ(values.back(), kMessages - 1);
  }
}

TEST(Messages, AnotherSizeThanExpectedIsAnError) {
  World world(MpiOptions{});
  if (world.comm->size() == 1) GTEST_SKIP() << "needs two ranks";
  std::vector<float> data(4);
  if (world.comm->rank() == 0) {
    world.comm->wait(world.comm->send(data.data(), 8, 1, 1));
    world.comm->wait(world.comm->send(data.data(), 16, 1, 2));
  } else if (world.comm->rank() == 1) {
    EXPECT_THROW(world.comm->wait(world.comm->receive(data.data(), 16, 0, 1)), Error);  // shorter
    EXPECT_THROW(world.comm->wait(world.comm->receive(data.data(), 8, 0, 2)), Error);   // longer
  }
}

TEST(Messages, ARankMaySendToItself) {
  World world(MpiOptions{});
  for (int64_t count : {int64_t{0}, int64_t{5}, int64_t{300001}}) {
    const auto outgoing = contribution<float>(world.comm->rank(), count);
    std::vector<float> incoming(static_cast<size_t>(count));
    const auto sending = world.comm->send(outgoing.data(), count * 4, world.comm->rank(), 9);
    world.comm->wait(world.comm->receive(incoming.data(), count * 4, world.comm->rank(), 9));
    world.comm->wait(sending);
    EXPECT_EQ(incoming, outgoing);
  }
}

TEST(Messages, ToNobodyOrWithAnImpossibleTagAreRefused) {
  World world(MpiOptions{});
  float value = 0;
  EXPECT_THROW(world.comm->send(&value, 4, world.comm->size(), 0), Error);
  EXPECT_THROW(world.comm->send(&value, 4, -1, 0), Error);
  EXPECT_THROW(world.comm->wait(0), Error);
  if (world.comm->size() > 1) {
    const int peer = (world.comm->rank() + 1) % world.comm->size();
    EXPECT_THROW(world.comm->send(&value, 4, peer, -1), Error);
    EXPECT_THROW(world.comm->send(&value, -4, peer, 0), Error);
  }
}

TEST(Messages, SizesBeyondAnIntAreOneElementOfADerivedType) {
  for (int64_t bytes : {(int64_t{1} << 31) - 1, int64_t{1} << 31, (int64_t{5} << 30) + 12345}) {
    const MessageType type(bytes);
    MPI_Count element = 0;
    ASSERT_EQ(MPI_Type_size_x(type.get(), &element), MPI_SUCCESS);
    EXPECT_EQ(type.count() * element, bytes);
    MPI_Count lower = 0, extent = 0;
    ASSERT_EQ(MPI_Type_get_extent_x(type.get(), &lower, &extent), MPI_SUCCESS);
    EXPECT_EQ(lower, 0);
    EXPECT_EQ(type.count() * extent, bytes);
  }
}

}  // namespace
}  // namespace foresail
