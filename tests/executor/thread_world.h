// Ranks as threads of one process, with every kind of communication: groups reduce in rank order, messages are buffered.
// Threads of one rank may use different groups at once, as the queues of a Program do.
#pragma once

#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "core/error.h"

namespace foresail::testing {

/// What all ranks share.
class ThreadWorld {
 public:
  explicit ThreadWorld(int size) : size_(size) {}
  int size() const { return size_; }

  /// Where the members of a group meet.
  struct Room {
    explicit Room(std::vector<int> group) : members(std::move(group)), inputs(members.size()) {}
    const std::vector<int> members;
    std::mutex mutex;
    std::condition_variable changed;
    int64_t arrivals = 0;
    std::vector<const void*> inputs;

    void meet() {
      std::unique_lock lock(mutex);
      const auto size = static_cast<int64_t>(members.size());
      const int64_t complete = (arrivals++ / size + 1) * size;
      changed.notify_all();
      changed.wait(lock, [&] { return arrivals >= complete; });
    }
  };

  Room& room(GroupId group) { return *rooms_.at(static_cast<size_t>(group)); }
  void create_groups(const std::vector<std::vector<int>>& groups) {
    const std::lock_guard lock(mutex_);
    if (!rooms_.empty()) return;  // another rank was first
    for (const auto& members : groups) rooms_.push_back(std::make_unique<Room>(members));
  }

  void put(int from, int to, int tag, const void* data, int64_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      const auto* begin = static_cast<const std::byte*>(data);
      mail_[{from, to, tag}].emplace_back(begin, begin + bytes);
    }
    arrived_.notify_all();
  }
  void get(int from, int to, int tag, void* data, int64_t bytes) {
    std::unique_lock lock(mutex_);
    auto& box = mail_[{from, to, tag}];
    arrived_.wait(lock, [&] { return !box.empty(); });
    ensure(static_cast<int64_t>(box.front().size()) == bytes, "both ends of a message agree on its size");
    std::memcpy(data, box.front().data(), static_cast<size_t>(bytes));
    box.pop_front();
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<std::unique_ptr<Room>> rooms_;
  std::map<std::array<int, 3>, std::deque<std::vector<std::byte>>> mail_;
};

class ThreadWorldCommunicator final : public Communicator {
 public:
  ThreadWorldCommunicator(ThreadWorld& world, int rank) : world_(world), rank_(rank) {}

  /// Called before a collective looks at its operands, and when it is over.
  std::function<void(GroupId)> before_collective, after_collective;

  int rank() const override { return rank_; }
  int size() const override { return world_.size(); }
  bool concurrent() const override { return true; }
  void create_groups(const std::vector<std::vector<int>>& groups) override { world_.create_groups(groups); }
  int group_rank(GroupId group) const override {
    const auto& members = world_.room(group).members;
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i] == rank_) return static_cast<int>(i);
    }
    return -1;
  }
  int group_size(GroupId group) const override { return static_cast<int>(world_.room(group).members.size()); }

  void all_reduce(void* data, int64_t count, DType dtype, ReduceKind kind, GroupId group) override {
    ensure(dtype == DType::f64 && kind == ReduceKind::sum, "tests sum f64");
    std::vector<double> sum;
    exchange(group, data, [&](const std::vector<const void*>& inputs) { sum = sum_of(inputs, 0, count); });
    std::memcpy(data, sum.data(), sum.size() * sizeof(double));
    if (after_collective) after_collective(group);
  }
  void all_gather(const void* input, void* output, int64_t count, DType dtype, GroupId group) override {
    const auto bytes = static_cast<size_t>(count * size_of(dtype));
    std::vector<std::byte> whole(bytes * static_cast<size_t>(group_size(group)));
    exchange(group, input, [&](const std::vector<const void*>& inputs) {
      for (size_t i = 0; i < inputs.size(); ++i) std::memcpy(whole.data() + i * bytes, inputs[i], bytes);
    });
    std::memcpy(output, whole.data(), whole.size());
    if (after_collective) after_collective(group);
  }
  void reduce_scatter(const void* input, void* output, int64_t count, DType dtype, GroupId group) override {
    ensure(dtype == DType::f64, "tests sum f64");
    std::vector<double> sum;
    exchange(group, input,
             [&](const std::vector<const void*>& inputs) { sum = sum_of(inputs, group_rank(group) * count, count); });
    std::memcpy(output, sum.data(), sum.size() * sizeof(double));
    if (after_collective) after_collective(group);
  }
  void all_to_all(const void* input, void* output, int64_t count, DType dtype, GroupId group) override {
    const auto bytes = static_cast<size_t>(count * size_of(dtype));
    const auto mine = static_cast<size_t>(group_rank(group)) * bytes;
    exchange(group, input, [&](const std::vector<const void*>& inputs) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        std::memcpy(static_cast<std::byte*>(output) + i * bytes, static_cast<const std::byte*>(inputs[i]) + mine,
                    bytes);
      }
    });
    if (after_collective) after_collective(group);
  }
  void ring_shift(const void* input, void* output, int64_t bytes, GroupId group) override {
    const auto size = static_cast<size_t>(group_size(group)), rank = static_cast<size_t>(group_rank(group));
    exchange(group, input, [&](const std::vector<const void*>& inputs) {
      std::memcpy(output, inputs[(rank + size - 1) % size], static_cast<size_t>(bytes));
    });
    if (after_collective) after_collective(group);
  }
  void broadcast(void*, int64_t, int, GroupId) override { ensure(false, "executors do not broadcast"); }
  void barrier(GroupId group) override { world_.room(group).meet(); }

  Request send(const void* data, int64_t bytes, int peer, int tag) override {
    world_.put(rank_, peer, tag, data, bytes);
    return -1;
  }
  Request receive(void* data, int64_t bytes, int peer, int tag) override {
    world_.get(peer, rank_, tag, data, bytes);
    return -1;
  }
  void wait(Request) override {}
  [[noreturn]] void abort(const std::string& message) override { throw_environment("thread world", message, ""); }
  std::string description() const override { return "threads"; }

 private:
  /// Calls `read` while the operands of all members hold still.
  template <typename Read>
  void exchange(GroupId group, const void* input, const Read& read) {
    if (before_collective) before_collective(group);
    ThreadWorld::Room& room = world_.room(group);
    room.inputs[static_cast<size_t>(group_rank(group))] = input;
    room.meet();
    read(room.inputs);
    room.meet();
  }
  static std::vector<double> sum_of(const std::vector<const void*>& inputs, int64_t begin, int64_t count) {
    std::vector<double> sum(static_cast<size_t>(count), 0.0);
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] = static_cast<const double*>(inputs[0])[begin + static_cast<int64_t>(i)];
      for (size_t member = 1; member < inputs.size(); ++member) {
        sum[i] += static_cast<const double*>(inputs[member])[begin + static_cast<int64_t>(i)];
      }
    }
    return sum;
  }

  ThreadWorld& world_;
  int rank_;
};

/// Runs `body(communicator)` for every rank, each on a thread.
template <typename Body>
void run_thread_world(int size, const Body& body) {
  ThreadWorld world(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadWorldCommunicator communicator(world, rank);
      body(communicator);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace foresail::testing
