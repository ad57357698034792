// Communicator over MPI: transport, groups and point to point are the library's; reductions add in rank order
// (reducer.h).
#include <algorithm>
#include <cstring>
#include <exception>
#include <iostream>
#include <limits>

#include "comm/group_check.h"
#include "comm/mpi/mpi_c.h"
#include "comm/mpi/mpi_check.h"
#include "comm/mpi/mpi_options.h"
#include "comm/mpi/mpi_process.h"
#include "comm/mpi/rank_order.h"
#include "comm/mpi/reducer.h"
#include "comm/mpi/request_table.h"
#include "core/error.h"

namespace foresail {
namespace {

constexpr int kRingTag = 0;  // a team's own messages are ring shifts only

/// What a GroupId of this rank owns. Equal member lists have a team each: two queues may use them at the same time.
struct Team {
  MPI_Comm comm = MPI_COMM_NULL;
  std::unique_ptr<Reducer> reducer;

  Team() = default;
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team() {
    reducer.reset();
    if (comm != MPI_COMM_NULL && std::uncaught_exceptions() == 0) MPI_Comm_free(&comm);
  }
};

struct Group {
  int rank = -1;
  int size = 0;
  std::unique_ptr<Team> team;  ///< none if this rank is not a member, or the only one
};

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(const MpiOptions& options);
  ~MpiCommunicator() override;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool concurrent() const override { return mpi_is_concurrent(); }

  void create_groups(const std::vector<std::vector<int>>& groups) override;
  int group_rank(GroupId group) const override { return find(group).rank; }
  int group_size(GroupId group) const override { return find(group).size; }

  void all_reduce(void* data, int64_t count, DType dtype, ReduceKind kind, GroupId group) override;
  void all_gather(const void* input, void* output, int64_t count, DType dtype, GroupId group) override;
  void reduce_scatter(const void* input, void* output, int64_t count, DType dtype, GroupId group) override;
  void all_to_all(const void* input, void* output, int64_t count, DType dtype, GroupId group) override;
  void ring_shift(const void* input, void* output, int64_t bytes, GroupId group) override;
  void broadcast(void* data, int64_t bytes, int root_in_group, GroupId group) override;
  void barrier(GroupId group) override;

  Request send(const void* data, int64_t bytes, int peer, int tag) override;
  Request receive(void* data, int64_t bytes, int peer, int tag) override;
  void wait(Request request) override { requests_.wait(request); }

  [[noreturn]] void abort(const std::string& message) override;
  std::string description() const override { return mpi_description(); }

 private:
  const Group& find(GroupId group) const;
  const Group& member(GroupId group, int64_t count) const;
  std::unique_ptr<Team> make_team(const std::vector<int>& members, int tag) const;
  void check_message(int64_t bytes, int peer, int tag) const;

  MpiOptions options_;
  int rank_ = 0, size_ = 1;
  int largest_tag_ = 0;
  std::vector<int> host_of_;        ///< per world rank, named by the lowest rank of the host
  MPI_Comm peers_ = MPI_COMM_NULL;  ///< point to point: never mixed with collectives
  std::vector<Group> groups_;
  RequestTable requests_;
};

MpiCommunicator::MpiCommunicator(const MpiOptions& options) : options_(options) {
  ensure(options.piece_bytes > 0 && options.piece_bytes <= (int64_t{1} << 30), "a piece is between 1 byte and 1 GiB");
  start_mpi();
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
  host_of_ = first_rank_of_each_host();
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &peers_), "MPI_Comm_dup");
  int* bound = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&bound), &found), "MPI_Comm_get_attr");
  largest_tag_ = found ? *bound : std::numeric_limits<int16_t>::max();  // the least that the standard grants
}

MpiCommunicator::~MpiCommunicator() {
  if (std::uncaught_exceptions() > 0) {
    forsake_mpi();  // an error unwinds this rank alone: nothing here may wait for peers
    return;
  }
  groups_.clear();
  MPI_Comm_free(&peers_);
}

std::unique_ptr<Team> MpiCommunicator::make_team(const std::vector<int>& members, int tag) const {
  auto team = std::make_unique<Team>();
  MPI_Group world = MPI_GROUP_NULL, chosen = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(world, static_cast<int>(members.size()), members.data(), &chosen), "MPI_Group_incl");
  check_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, chosen, tag, &team->comm), "MPI_Comm_create_group");
  check_mpi(MPI_Group_free(&chosen), "MPI_Group_free");
  check_mpi(MPI_Group_free(&world), "MPI_Group_free");
  check_mpi(MPI_Comm_set_errhandler(team->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  const int host = host_of_[static_cast<size_t>(members.front())];
  const bool one_host = std::all_of(members.begin(), members.end(),
                                    [&](int each) { return host_of_[static_cast<size_t>(each)] == host; });
  team->reducer = options_.shared_windows && one_host ? make_window_reducer(team->comm, options_.piece_bytes)
                                                      : make_message_reducer(team->comm, options_.piece_bytes);
  return team;
}

void MpiCommunicator::create_groups(const std::vector<std::vector<int>>& groups) {
  check_groups(groups, size_);
  groups_.clear();
  // All ranks walk the same list in the same order, so creation cannot deadlock.
  for (const std::vector<int>& members : groups) {
    Group group;
    group.size = static_cast<int>(members.size());
    const auto self = std::find(members.begin(), members.end(), rank_);
    if (self != members.end()) {
      group.rank = static_cast<int>(self - members.begin());
      const size_t tag = groups_.size() % (static_cast<size_t>(largest_tag_) + 1);
      if (group.size > 1) group.team = make_team(members, static_cast<int>(tag));
    }
    groups_.push_back(std::move(group));
  }
}

const Group& MpiCommunicator::find(GroupId group) const {
  ensure(group >= 0 && group < static_cast<GroupId>(groups_.size()),
         "a communication group is created before it is used");
  return groups_[static_cast<size_t>(group)];
}

const Group& MpiCommunicator::member(GroupId group, int64_t count) const {
  const Group& found = find(group);
  ensure(found.rank >= 0, "only members of a group take part in its collectives");
  ensure(count >= 0, "a message has a size of zero or more");
  return found;
}

void MpiCommunicator::all_reduce(void* data, int64_t count, DType dtype, ReduceKind kind, GroupId group) {
  const Group& found = member(group, count);
  if (found.team) found.team->reducer->all_reduce(static_cast<std::byte*>(data), count, dtype, kind);
}

void MpiCommunicator::reduce_scatter(const void* input, void* output, int64_t count, DType dtype, GroupId group) {
  const Group& found = member(group, count);
  if (found.team) {
    found.team->reducer->reduce_scatter(static_cast<const std::byte*>(input), static_cast<std::byte*>(output), count,
                                        dtype);
  } else if (input != output && count > 0) {
    std::memmove(output, input, static_cast<size_t>(count * size_of(dtype)));
  }
}

void MpiCommunicator::all_gather(const void* input, void* output, int64_t count, DType dtype, GroupId group) {
  const Group& found = member(group, count);
  const int64_t bytes = count * size_of(dtype);
  const std::byte* mine = static_cast<std::byte*>(output) + found.rank * bytes;
  const bool in_place = input == mine;
  if (!found.team) {
    if (!in_place && bytes > 0) std::memmove(output, input, static_cast<size_t>(bytes));
    return;
  }
  const MessageType type(bytes);
  check_mpi(MPI_Allgather(in_place ? MPI_IN_PLACE : input, type.count(), type.get(), output, type.count(), type.get(),
                          found.team->comm),
            "MPI_Allgather");
}

void MpiCommunicator::all_to_all(const void* input, void* output, int64_t count, DType dtype, GroupId group) {
  const Group& found = member(group, count);
  const int64_t bytes = count * size_of(dtype);
  if (!found.team) {
    if (bytes > 0) std::memcpy(output, input, static_cast<size_t>(bytes));
    return;
  }
  const MessageType type(bytes);
  check_mpi(MPI_Alltoall(input, type.count(), type.get(), output, type.count(), type.get(), found.team->comm),
            "MPI_Alltoall");
}

void MpiCommunicator::ring_shift(const void* input, void* output, int64_t bytes, GroupId group) {
  const Group& found = member(group, bytes);
  if (!found.team) {
    if (bytes > 0) std::memcpy(output, input, static_cast<size_t>(bytes));
    return;
  }
  const MessageType type(bytes);
  const int next = (found.rank + 1) % found.size, previous = (found.rank + found.size - 1) % found.size;
  MPI_Status status;
  check_mpi(MPI_Sendrecv(input, type.count(), type.get(), next, kRingTag, output, type.count(), type.get(), previous,
                         kRingTag, found.team->comm, &status),
            "MPI_Sendrecv");
  check_received(status, bytes);
}

void MpiCommunicator::broadcast(void* data, int64_t bytes, int root_in_group, GroupId group) {
  const Group& found = member(group, bytes);
  ensure(root_in_group >= 0 && root_in_group < found.size, "the root of a broadcast is a member of its group");
  if (!found.team) return;
  const MessageType type(bytes);
  check_mpi(MPI_Bcast(data, type.count(), type.get(), root_in_group, found.team->comm), "MPI_Bcast");
}

void MpiCommunicator::barrier(GroupId group) {
  const Group& found = member(group, 0);
  if (found.team) check_mpi(MPI_Barrier(found.team->comm), "MPI_Barrier");
}

void MpiCommunicator::check_message(int64_t bytes, int peer, int tag) const {
  ensure(bytes >= 0, "a message has a size of zero or more");
  ensure(peer >= 0 && peer < size_, "a message goes to a rank of the run");
  ensure(tag >= 0 && tag <= largest_tag_, "a message tag is within what MPI allows");
}

Communicator::Request MpiCommunicator::send(const void* data, int64_t bytes, int peer, int tag) {
  check_message(bytes, peer, tag);
  const MessageType type(bytes);
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Isend(data, type.count(), type.get(), peer, tag, peers_, &request), "MPI_Isend");
  return requests_.add(request, -1);
}

Communicator::Request MpiCommunicator::receive(void* data, int64_t bytes, int peer, int tag) {
  check_message(bytes, peer, tag);
  const MessageType type(bytes);
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Irecv(data, type.count(), type.get(), peer, tag, peers_, &request), "MPI_Irecv");
  return requests_.add(request, bytes);
}

void MpiCommunicator::abort(const std::string& message) {
  std::cerr << message << std::endl;
  forsake_mpi();
  MPI_Abort(MPI_COMM_WORLD, static_cast<int>(Exit::environment_failed));
  std::_Exit(static_cast<int>(Exit::environment_failed));
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const MpiOptions& options) {
  return std::make_unique<MpiCommunicator>(options);
}

std::unique_ptr<Communicator> make_mpi_communicator() { return make_mpi_communicator(MpiOptions{}); }

}  // namespace foresail
