// A run of one rank: every group has one member, so collectives are copies or nothing, and there is nobody to send to.
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "comm/communicator.h"
#include "comm/group_check.h"
#include "core/error.h"

namespace foresail {
namespace {

class LocalCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }

  void create_groups(const std::vector<std::vector<int>>& groups) override {
    check_groups(groups, 1);
    group_count_ = static_cast<GroupId>(groups.size());
  }
  int group_rank(GroupId group) const override {
    check(group);
    return 0;
  }
  int group_size(GroupId group) const override {
    check(group);
    return 1;
  }

  void all_reduce(void*, int64_t count, DType, ReduceKind, GroupId group) override { check(group, count); }
  void all_gather(const void* input, void* output, int64_t count, DType dtype, GroupId group) override {
    check(group, count);
    copy(input, output, count * size_of(dtype));
  }
  void reduce_scatter(const void* input, void* output, int64_t count, DType dtype, GroupId group) override {
    check(group, count);
    copy(input, output, count * size_of(dtype));
  }
  void broadcast(void*, int64_t bytes, int root_in_group, GroupId group) override {
    check(group, bytes);
    ensure(root_in_group == 0, "the root of a broadcast is a member of its group");
  }
  void barrier(GroupId group) override { check(group); }

  Request send(const void*, int64_t, int, int) override { refuse_peer(); }
  Request receive(void*, int64_t, int, int) override { refuse_peer(); }
  void wait(Request) override { ensure(false, "a request that is waited for has been started"); }

  [[noreturn]] void abort(const std::string& message) override {
    std::cerr << message << std::endl;
    std::_Exit(static_cast<int>(Exit::environment_failed));
  }
  std::string description() const override { return "single rank"; }

 private:
  void check(GroupId group, int64_t count = 0) const {
    ensure(group >= 0 && group < group_count_, "a communication group is created before it is used");
    ensure(count >= 0, "a message has a size of zero or more");
  }
  static void copy(const void* input, void* output, int64_t bytes) {
    if (input != output && bytes > 0) std::memmove(output, input, static_cast<size_t>(bytes));
  }
  [[noreturn]] static void refuse_peer() {
    throw Error(Exit::environment_failed, "internal invariant",
                "a run of one rank has no peer to exchange messages with",
                "this is a defect of foresail: please report it with the command line");
  }

  GroupId group_count_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_local_communicator() { return std::make_unique<LocalCommunicator>(); }

}  // namespace foresail
