// Ranks as threads of one process: the collectives that saving and loading use, over shared memory and a barrier.
#pragma once

#include <barrier>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "core/error.h"

namespace foresail {

struct ThreadTeam {
  explicit ThreadTeam(int size) : barrier(size), pointers(static_cast<size_t>(size)) {}
  std::barrier<> barrier;
  std::vector<const void*> pointers;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(ThreadTeam& team, int rank) : team_(team), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(team_.pointers.size()); }
  bool concurrent() const override { return false; }
  void create_groups(const std::vector<std::vector<int>>&) override {}
  int group_rank(GroupId) const override { return rank_; }
  int group_size(GroupId) const override { return size(); }
  void all_gather(const void* input, void* output, int64_t count, DType dtype, GroupId) override {
    const auto bytes = static_cast<size_t>(count * size_of(dtype));
    team_.pointers[static_cast<size_t>(rank_)] = input;
    team_.barrier.arrive_and_wait();
    for (size_t i = 0; i < team_.pointers.size(); ++i) {
      std::memcpy(static_cast<char*>(output) + i * bytes, team_.pointers[i], bytes);
    }
    team_.barrier.arrive_and_wait();
  }
  void broadcast(void* data, int64_t bytes, int root, GroupId) override {
    team_.pointers[static_cast<size_t>(rank_)] = data;
    team_.barrier.arrive_and_wait();
    if (rank_ != root) std::memcpy(data, team_.pointers[static_cast<size_t>(root)], static_cast<size_t>(bytes));
    team_.barrier.arrive_and_wait();
  }
  void barrier(GroupId) override { team_.barrier.arrive_and_wait(); }
  void all_reduce(void*, int64_t, DType, ReduceKind, GroupId) override { refuse(); }
  void reduce_scatter(const void*, void*, int64_t, DType, GroupId) override { refuse(); }
  void all_to_all(const void*, void*, int64_t, DType, GroupId) override { refuse(); }
  void ring_shift(const void*, void*, int64_t, GroupId) override { refuse(); }
  Request send(const void*, int64_t, int, int) override { refuse(); }
  Request receive(void*, int64_t, int, int) override { refuse(); }
  void wait(Request) override { refuse(); }
  [[noreturn]] void abort(const std::string& message) override { throw std::logic_error(message); }
  std::string description() const override { return "threads"; }

 private:
  [[noreturn]] static void refuse() { throw std::logic_error("checkpoints need no such call"); }
  ThreadTeam& team_;
  int rank_;
};

/// Runs `body(communicator)` on `size` threads; returns each rank's Error text, empty where there was none.
template <typename Body>
std::vector<std::string> run_ranks(int size, const Body& body) {
  ThreadTeam team(size);
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadCommunicator communicator(team, rank);
      try {
        body(communicator);
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace foresail
