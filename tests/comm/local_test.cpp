// The engine of a run of one rank.
#include <gtest/gtest.h>

#include <vector>

#include "comm/communicator.h"
#include "core/error.h"

namespace foresail {
namespace {

TEST(LocalCommunicator, IsAWorldOfOne) {
  const auto comm = make_local_communicator();
  EXPECT_EQ(comm->rank(), 0);
  EXPECT_EQ(comm->size(), 1);
  EXPECT_EQ(comm->description(), "single rank");
  comm->create_groups({{0}, {0}});
  EXPECT_EQ(comm->group_rank(1), 0);
  EXPECT_EQ(comm->group_size(1), 1);
}

TEST(LocalCommunicator, ReductionsLeaveTheOnlyContribution) {
  const auto comm = make_local_communicator();
  comm->create_groups({{0}});
  std::vector<float> data = {1, 2, 3};
  comm->all_reduce(data.data(), 3, DType::f32, ReduceKind::sum, 0);
  EXPECT_EQ(data, (std::vector<float>{1, 2, 3}));
  std::vector<float> output(3);
  comm->reduce_scatter(data.data(), output.data(), 3, DType::f32, 0);
  EXPECT_EQ(output, data);
  comm->reduce_scatter(data.data(), data.data(), 3, DType::f32, 0);
  EXPECT_EQ(data, output);
}

TEST(LocalCommunicator, AllGatherCopiesUnlessTheInputIsThePartItself) {
  const auto comm = make_local_communicator();
  comm->create_groups({{0}});
  std::vector<double> input = {4, 5}, output = {0, 0};
  comm->all_gather(input.data(), output.data(), 2, DType::f64, 0);
  EXPECT_EQ(output, input);
  comm->all_gather(output.data(), output.data(), 2, DType::f64, 0);
  EXPECT_EQ(output, input);
}

TEST(LocalCommunicator, BroadcastAndBarrierDoNothing) {
  const auto comm = make_local_communicator();
  comm->create_groups({{0}});
  int32_t value = 42;
  comm->broadcast(&value, 4, 0, 0);
  comm->barrier(0);
  EXPECT_EQ(value, 42);
  EXPECT_THROW(comm->broadcast(&value, 4, 1, 0), Error);
}

TEST(LocalCommunicator, ExchangesOfAGroupOfOneAreCopies) {
  const auto comm = make_local_communicator();
  comm->create_groups({{0}});
  const std::vector<float> input = {1, 2, 3};
  std::vector<float> output(3);
  comm->all_to_all(input.data(), output.data(), 3, DType::f32, 0);
  EXPECT_EQ(output, input);
  std::vector<float> shifted(3);
  comm->ring_shift(input.data(), shifted.data(), 12, 0);
  EXPECT_EQ(shifted, input);
  EXPECT_THROW(comm->all_to_all(input.data(), output.data(), 3, DType::f32, 1), Error);
  EXPECT_THROW(comm->ring_shift(input.data(), output.data(), -1, 0), Error);
}

TEST(LocalCommunicator, MessagesToOneselfMatchByTagInOrderWhicheverEndStartsFirst) {
  const auto comm = make_local_communicator();
  const std::vector<int32_t> sent = {10, 11, 12};
  std::vector<int32_t> received(3);
  const auto early = comm->receive(&received[2], 4, 0, 7);
  const auto first = comm->send(&sent[0], 4, 0, 5), second = comm->send(&sent[1], 4, 0, 5);
  const auto third = comm->send(&sent[2], 4, 0, 7);
  comm->wait(comm->receive(&received[0], 4, 0, 5));
  comm->wait(comm->receive(&received[1], 4, 0, 5));
  for (const auto request : {early, first, second, third}) comm->wait(request);
  EXPECT_EQ(received, sent);
}

TEST(LocalCommunicator, RefusesMessagesThatNobodyCouldComplete) {
  const auto comm = make_local_communicator();
  float value = 0;
  EXPECT_THROW(comm->send(&value, 4, 1, 0), Error);
  EXPECT_THROW(comm->receive(&value, 4, -1, 0), Error);
  EXPECT_THROW(comm->send(&value, -4, 0, 0), Error);
  EXPECT_THROW(comm->send(&value, 4, 0, -1), Error);
  EXPECT_THROW(comm->wait(0), Error);
  const auto unmatched = comm->receive(&value, 4, 0, 0);
  EXPECT_THROW(comm->wait(unmatched), Error) << "a wait that would never end";
  EXPECT_THROW(comm->send(&value, 8, 0, 0), Error) << "another size than the receive";
}

TEST(LocalCommunicator, RefusesGroupsThatCannotBe) {
  const auto comm = make_local_communicator();
  EXPECT_THROW(comm->create_groups({{1}}), Error);
  EXPECT_THROW(comm->create_groups({{0, 0}}), Error);
  EXPECT_THROW(comm->create_groups({{}}), Error);
  comm->create_groups({{0}});
  EXPECT_THROW(comm->barrier(1), Error);
  EXPECT_THROW(comm->barrier(-1), Error);
  EXPECT_THROW(comm->all_reduce(nullptr, -1, DType::f32, ReduceKind::sum, 0), Error);
}

TEST(MpiCommunicator, RefusesAProcessThatIsNoRank) {
  ASSERT_EQ(getenv("OMPI_COMM_WORLD_SIZE"), nullptr);
  try {
    make_mpi_communicator();
    FAIL() << "a process outside mpirun became a rank";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::environment_failed);
  }
}

}  // namespace
}  // namespace foresail
