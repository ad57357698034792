#include "tests/trainer/thread_world.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "core/error.h"
#include "core/float16.h"

namespace foresail::testing {
namespace {

/// Adds (or takes the larger of) elements [first, first + count) of all inputs, in the order of the group.
template <typename Scalar>
void reduce_as(const std::vector<const void*>& inputs, int64_t first, int64_t count, ReduceKind kind, std::byte* out) {
  for (int64_t i = 0; i < count; ++i) {
    const auto at = [&](const void* input) { return static_cast<const Scalar*>(input)[first + i]; };
    Scalar value = at(inputs.front());
    for (size_t member = 1; member < inputs.size(); ++member) {
      value = kind == ReduceKind::sum ? value + at(inputs[member]) : std::max(value, at(inputs[member]));
    }
    std::memcpy(out + i * static_cast<int64_t>(sizeof value), &value, sizeof value);
  }
}

void reduce(const std::vector<const void*>& inputs, int64_t first, int64_t count, DType dtype, ReduceKind kind,
            std::byte* out) {
  switch (dtype) {
    case DType::f64: return reduce_as<double>(inputs, first, count, kind, out);
    case DType::f32: return reduce_as<float>(inputs, first, count, kind, out);
    case DType::i32: return reduce_as<int32_t>(inputs, first, count, kind, out);
    case DType::f16:
    case DType::bf16: break;
  }
  // As the engines do it: sums in f32, rounded once.
  const auto wide = [&](const void* input) {
    std::vector<float> values(static_cast<size_t>(count));
    widen(static_cast<const std::byte*>(input) + first * size_of(dtype), dtype, values.data(), count);
    return values;
  };
  std::vector<float> sum = wide(inputs.front());
  for (size_t member = 1; member < inputs.size(); ++member) {
    const std::vector<float> more = wide(inputs[member]);
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] = kind == ReduceKind::sum ? sum[i] + more[i] : std::max(sum[i], more[i]);
    }
  }
  round_to_16_bit(sum.data(), out, dtype, count);
}

}  // namespace

class ThreadRank final : public Communicator {
 public:
  ThreadRank(ThreadWorld& world, int rank) : world_(world), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return world_.size(); }
  bool concurrent() const override { return true; }

  void create_groups(const std::vector<std::vector<int>>& groups) override {
    world_.meet(world_.everyone_);
    if (rank_ == 0) {
      world_.groups_.clear();
      for (const auto& members : groups) {
        world_.groups_.push_back({members, std::vector<const void*>(members.size()), 0, 0});
      }
    }
    world_.meet(world_.everyone_);
  }
  int group_rank(GroupId group) const override {
    const auto& members = meeting(group).members;
    const auto found = std::find(members.begin(), members.end(), rank_);
    return found == members.end() ? -1 : static_cast<int>(found - members.begin());
  }
  int group_size(GroupId group) const override { return static_cast<int>(meeting(group).members.size()); }

  void all_reduce(void* data, int64_t count, DType dtype, ReduceKind kind, GroupId group) override {
    exchange(data, data, count * size_of(dtype), group,
             [&](const Inputs& inputs, std::byte* out) { reduce(inputs, 0, count, dtype, kind, out); });
  }
  void all_gather(const void* input, void* output, int64_t count, DType dtype, GroupId group) override {
    const int64_t bytes = count * size_of(dtype);
    exchange(input, output, bytes * group_size(group), group, [&](const Inputs& inputs, std::byte* out) {
      for (const void* part : inputs) out = std::copy_n(static_cast<const std::byte*>(part), bytes, out);
    });
  }
  void reduce_scatter(const void* input, void* output, int64_t count, DType dtype, GroupId group) override {
    const int64_t first = count * group_rank(group);
    exchange(input, output, count * size_of(dtype), group,
             [&](const Inputs& inputs, std::byte* out) { reduce(inputs, first, count, dtype, ReduceKind::sum, out); });
  }
  void all_to_all(const void* input, void* output, int64_t count, DType dtype, GroupId group) override {
    const int64_t bytes = count * size_of(dtype), own = group_rank(group);
    exchange(input, output, bytes * group_size(group), group, [&](const Inputs& inputs, std::byte* out) {
      for (const void* parts : inputs) {
        out = std::copy_n(static_cast<const std::byte*>(parts) + own * bytes, bytes, out);
      }
    });
  }
  void ring_shift(const void* input, void* output, int64_t bytes, GroupId group) override {
    const int size = group_size(group), previous = (group_rank(group) + size - 1) % size;
    exchange(input, output, bytes, group, [&](const Inputs& inputs, std::byte* out) {
      std::memcpy(out, inputs[static_cast<size_t>(previous)], static_cast<size_t>(bytes));
    });
  }
  void broadcast(void* data, int64_t bytes, int root_in_group, GroupId group) override {
    exchange(data, data, bytes, group, [&](const Inputs& inputs, std::byte* out) {
      std::memcpy(out, inputs[static_cast<size_t>(root_in_group)], static_cast<size_t>(bytes));
    });
  }
  void barrier(GroupId group) override { world_.meet(meeting(group)); }

  Request send(const void* data, int64_t bytes, int peer, int tag) override {
    const auto* from = static_cast<const std::byte*>(data);
    const std::lock_guard lock(world_.mutex_);
    world_.mail_[{rank_, peer, tag}].emplace_back(from, from + bytes);
    world_.changed_.notify_all();
    return remember({});
  }
  Request receive(void* data, int64_t bytes, int peer, int tag) override {
    const std::lock_guard lock(world_.mutex_);
    return remember({data, bytes, peer, tag});
  }
  void wait(Request request) override {
    std::unique_lock lock(world_.mutex_);
    const Receive receive = requests_.at(request);
    requests_.erase(request);
    if (receive.data == nullptr) return;
    auto& letters = world_.mail_[{receive.peer, rank_, receive.tag}];
    world_.changed_.wait(lock, [&] { return world_.broken_ || !letters.empty(); });
    world_.throw_if_broken();
    if (static_cast<int64_t>(letters.front().size()) != receive.bytes) throw std::logic_error("a message's size");
    std::copy(letters.front().begin(), letters.front().end(), static_cast<std::byte*>(receive.data));
    letters.pop_front();
  }

  [[noreturn]] void abort(const std::string& message) override { throw std::runtime_error(message); }
  std::string description() const override { return "threads"; }

 private:
  using Inputs = std::vector<const void*>;
  struct Receive {
    void* data = nullptr;  ///< null: a send, which is done when it is posted
    int64_t bytes = 0;
    int peer = 0, tag = 0;
  };

  ThreadWorld::Meeting& meeting(GroupId group) const { return world_.groups_.at(static_cast<size_t>(group)); }
  Request remember(const Receive& receive) {
    requests_[next_] = receive;
    return next_++;
  }
  /// All inputs are read before any output is written: they may be the same memory.
  template <typename Read>
  void exchange(const void* input, void* output, int64_t bytes, GroupId group, const Read& read) {
    ThreadWorld::Meeting& members = meeting(group);
    members.inputs[static_cast<size_t>(group_rank(group))] = input;
    world_.meet(members);
    std::vector<std::byte> result(static_cast<size_t>(bytes));
    read(members.inputs, result.data());
    world_.meet(members);
    std::copy(result.begin(), result.end(), static_cast<std::byte*>(output));
  }

  ThreadWorld& world_;
  int rank_;
  std::map<Request, Receive> requests_;  ///< guarded by the world's mutex
  Request next_ = 0;
};

ThreadWorld::ThreadWorld(int size) {
  everyone_.members.resize(static_cast<size_t>(size));
  std::iota(everyone_.members.begin(), everyone_.members.end(), 0);
}

std::unique_ptr<Communicator> ThreadWorld::communicator(int rank) { return std::make_unique<ThreadRank>(*this, rank); }

void ThreadWorld::break_down() {
  const std::lock_guard lock(mutex_);
  broken_ = true;
  changed_.notify_all();
}

void ThreadWorld::throw_if_broken() const {
  if (broken_) throw std::runtime_error("another rank failed");
}

void ThreadWorld::meet(Meeting& meeting) {
  std::unique_lock lock(mutex_);
  const int64_t number = meeting.meetings;
  if (++meeting.arrived == static_cast<int>(meeting.members.size())) {
    meeting.arrived = 0;
    ++meeting.meetings;
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return broken_ || meeting.meetings != number; });
  throw_if_broken();
}

std::vector<std::string> run_world(int size, const std::function<void(Communicator&)>& body) {
  ThreadWorld world(size);
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(*world.communicator(rank));
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
        world.break_down();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace foresail::testing
