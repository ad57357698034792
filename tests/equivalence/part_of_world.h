// A mesh on some neighbouring ranks of the world, so that several small experiments run at the same time in one mpirun.
#pragma once

#include "comm/communicator.h"

namespace foresail::testing {

/// The ranks [first, first + size) of `world`, numbered from 0. Groups belong to the world, which creates those of all its
/// parts at once; this part's begin at number `first_group` there.
class PartOfWorld final : public Communicator {
 public:
  PartOfWorld(Communicator& world, int first, int size, GroupId first_group)
      : world_(world), first_(first), size_(size), first_group_(first_group) {}

  int rank() const override { return world_.rank() - first_; }
  int size() const override { return size_; }
  bool concurrent() const override { return world_.concurrent(); }
  /// Refused: see above.
  void create_groups(const std::vector<std::vector<int>>& groups) override;
  int group_rank(GroupId group) const override { return world_.group_rank(first_group_ + group); }
  int group_size(GroupId group) const override { return world_.group_size(first_group_ + group); }

  void all_reduce(void* data, int64_t count, DType dtype, ReduceKind kind, GroupId group) override {
    world_.all_reduce(data, count, dtype, kind, first_group_ + group);
  }
  void all_gather(const void* input, void* output, int64_t count, DType dtype, GroupId group) override {
    world_.all_gather(input, output, count, dtype, first_group_ + group);
  }
  void reduce_scatter(const void* input, void* output, int64_t count, DType dtype, GroupId group) override {
    world_.reduce_scatter(input, output, count, dtype, first_group_ + group);
  }
  void all_to_all(const void* input, void* output, int64_t count, DType dtype, GroupId group) override {
    world_.all_to_all(input, output, count, dtype, first_group_ + group);
  }
  void ring_shift(const void* input, void* output, int64_t bytes, GroupId group) override {
    world_.ring_shift(input, output, bytes, first_group_ + group);
  }
  void broadcast(void* data, int64_t bytes, int root_in_group, GroupId group) override {
    world_.broadcast(data, bytes, root_in_group, first_group_ + group);
  }
  void barrier(GroupId group) override { world_.barrier(first_group_ + group); }

  Request send(const void* data, int64_t bytes, int peer, int tag) override {
    return world_.send(data, bytes, first_ + peer, tag);
  }
  Request receive(void* data, int64_t bytes, int peer, int tag) override {
    return world_.receive(data, bytes, first_ + peer, tag);
  }
  void wait(Request request) override { world_.wait(request); }

  [[noreturn]] void abort(const std::string& message) override;
  std::string description() const override { return world_.description(); }

 private:
  Communicator& world_;
  int first_, size_;
  GroupId first_group_;
};

/// Groups of the part's ranks, in the world's numbers.
std::vector<std::vector<int>> moved_to(const std::vector<std::vector<int>>& groups, int first);

}  // namespace foresail::testing
