// A run of one rank: every group has one member, so collectives are copies or nothing, and messages go to oneself.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <mutex>
#include <vector>

#include "comm/communicator.h"
#include "comm/group_check.h"
#include "core/error.h"

namespace foresail {
namespace {

class LocalCommunicator final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  bool concurrent() const override { return true; }

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
  void all_to_all(const void* input, void* output, int64_t count, DType dtype, GroupId group) override {
    check(group, count);
    copy(input, output, count * size_of(dtype));
  }
  void ring_shift(const void* input, void* output, int64_t bytes, GroupId group) override {
    check(group, bytes);
    copy(input, output, bytes);
  }
  void broadcast(void*, int64_t bytes, int root_in_group, GroupId group) override {
    check(group, bytes);
    ensure(root_in_group == 0, "the root of a broadcast is a member of its group");
  }
  void barrier(GroupId group) override { check(group); }

  Request send(const void* data, int64_t bytes, int peer, int tag) override {
    check_message(bytes, peer, tag);
    return start({.sends = true, .from = data, .bytes = bytes, .tag = tag});
  }
  Request receive(void* data, int64_t bytes, int peer, int tag) override {
    check_message(bytes, peer, tag);
    return start({.to = data, .bytes = bytes, .tag = tag});
  }
  void wait(Request request) override {
    const std::lock_guard lock(mutex_);
    ensure(request >= 0 && request < static_cast<Request>(messages_.size()) && at(request).state != State::free,
           "a request that is waited for has been started");
    ensure(at(request).state == State::delivered, "a message to oneself is sent and received before it is waited for");
    at(request).state = State::free;
  }

  [[noreturn]] void abort(const std::string& message) override {
    std::cerr << message << std::endl;
    std::_Exit(static_cast<int>(Exit::environment_failed));
  }
  std::string description() const override { return "single rank"; }

 private:
  enum class State : uint8_t { free, started, delivered };
  /// One end of a message.
  struct Message {
    bool sends = false;
    const void* from = nullptr;  ///< of a send
    void* to = nullptr;          ///< of a receive
    int64_t bytes = 0;
    int tag = 0;
    int64_t number = 0;  ///< of the start, to keep messages of one tag in order
    State state = State::free;
  };

  Message& at(Request request) { return messages_[static_cast<size_t>(request)]; }

  /// Joins the two ends when the second one starts; nothing is copied before, so nothing need be buffered.
  Request start(Message message) {
    const std::lock_guard lock(mutex_);
    message.number = started_++;
    message.state = State::started;
    Message* partner = nullptr;
    for (Message& other : messages_) {
      if (other.state != State::started || other.tag != message.tag || other.sends == message.sends) continue;
      if (partner == nullptr || other.number < partner->number) partner = &other;
    }
    if (partner != nullptr) {
      ensure(partner->bytes == message.bytes, "both ends of a message agree on its size");
      const Message& source = message.sends ? message : *partner;
      copy(source.from, message.sends ? partner->to : message.to, message.bytes);
      partner->state = message.state = State::delivered;
    }
    const auto slot =
        std::find_if(messages_.begin(), messages_.end(), [](const Message& each) { return each.state == State::free; });
    if (slot == messages_.end()) {
      messages_.push_back(message);
      return static_cast<Request>(messages_.size()) - 1;
    }
    *slot = message;
    return static_cast<Request>(slot - messages_.begin());
  }

  static void check_message(int64_t bytes, int peer, int tag) {
    ensure(bytes >= 0, "a message has a size of zero or more");
    ensure(peer == 0, "a message goes to a rank of the run");
    ensure(tag >= 0, "a message tag is zero or more");
  }
  void check(GroupId group, int64_t count = 0) const {
    ensure(group >= 0 && group < group_count_, "a communication group is created before it is used");
    ensure(count >= 0, "a message has a size of zero or more");
  }
  static void copy(const void* input, void* output, int64_t bytes) {
    if (input != output && bytes > 0) std::memmove(output, input, static_cast<size_t>(bytes));
  }

  GroupId group_count_ = 0;
  std::mutex mutex_;  ///< of the messages
  std::vector<Message> messages_;
  int64_t started_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_local_communicator() { return std::make_unique<LocalCommunicator>(); }

}  // namespace foresail
