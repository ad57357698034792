// Ranks as threads of one process, with every call of a Communicator: whole training runs of several ranks in a unit test.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "comm/communicator.h"

namespace foresail::testing {

class ThreadWorld {
 public:
  explicit ThreadWorld(int size);
  int size() const { return static_cast<int>(everyone_.members.size()); }
  std::unique_ptr<Communicator> communicator(int rank);
  /// A rank has failed: whoever waits for others fails too.
  void break_down();

 private:
  friend class ThreadRank;
  struct Meeting {
    std::vector<int> members;
    std::vector<const void*> inputs;  ///< of the members, in order
    int arrived = 0;
    int64_t meetings = 0;
  };
  /// Returns when all members have come.
  void meet(Meeting& meeting);
  void throw_if_broken() const;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool broken_ = false;
  Meeting everyone_;
  std::deque<Meeting> groups_;
  std::map<std::tuple<int, int, int>, std::deque<std::vector<std::byte>>> mail_;  ///< by from, to and tag
};

/// Runs body(communicator) on `size` threads; what each of them threw, empty where nothing.
std::vector<std::string> run_world(int size, const std::function<void(Communicator&)>& body);

}  // namespace foresail::testing
