// Runs the queues of a step beside each other: one on the calling thread, every other on a thread of its own. Knows
// nothing of Programs: a queue is a list of items, and some items wait until other queues have come far enough.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace foresail {

/// Do not start before `queue` has finished its first `finished` items of this step.
struct QueueWait {
  int32_t queue = 0;
  int32_t finished = 0;
};

/// Item i waits for waits[first_wait[i]] to waits[first_wait[i + 1] - 1]; items run one after the other.
struct QueueWork {
  std::vector<int32_t> first_wait{0};  ///< by item, and one past the last
  std::vector<QueueWait> waits;

  size_t items() const { return first_wait.size() - 1; }
};

class QueueEngine {
 public:
  /// Runs one item. Called by the queue's thread; what a waited-for item wrote is visible to the waiting one.
  using Run = std::function<void(size_t queue, size_t item)>;
  /// Ends the process with this message, because a thread is stuck in an item that no longer ends.
  using Abort = std::function<void(const std::string& message)>;

  /// Queue 0 belongs to the thread that calls step(); queues without items get no thread. Kernels that a worker thread
  /// runs do not fork: their team has one thread.
  QueueEngine(std::vector<QueueWork> queues, Run run, Abort abort,
              std::chrono::milliseconds grace = std::chrono::seconds(10));
  ~QueueEngine();
  QueueEngine(const QueueEngine&) = delete;
  QueueEngine& operator=(const QueueEngine&) = delete;

  /// Runs every item of every queue once and returns when all have finished. If an item throws, no further item starts
  /// and the first exception is thrown from here, once all threads have come back from the items they are in. A thread
  /// that does not within the grace time waits for a peer that will not come: then `abort` is called instead.
  void step();

 private:
  struct Queue {
    QueueWork work;
    alignas(64) std::atomic<int32_t> finished{0};  ///< items of this step
    std::thread thread;
  };

  void work(size_t queue);
  void run_queue(size_t queue);
  bool await(const QueueWait& wait);
  void finish(Queue& queue, int32_t items);
  void fail(size_t queue, std::exception_ptr failure);
  void end_step();
  std::string failure_text() const;

  std::vector<std::unique_ptr<Queue>> queues_;
  const Run run_;
  const Abort abort_;
  const std::chrono::milliseconds grace_;

  std::atomic<int32_t> waiting_{0};  ///< threads that sleep until a queue comes far enough
  std::atomic<bool> failed_{false};
  std::mutex mutex_;  ///< of everything below
  std::condition_variable changed_;
  int64_t started_steps_ = 0;
  int64_t returned_steps_ = 0;  ///< steps whose calling thread is done with queue 0
  size_t busy_workers_ = 0;
  size_t failed_queue_ = 0;
  std::exception_ptr failure_;
  bool stopping_ = false;
};

}  // namespace foresail
