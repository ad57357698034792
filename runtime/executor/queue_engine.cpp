#include "runtime/executor/queue_engine.h"

#include "core/error.h"
#include "core/parallel.h"

namespace foresail {

QueueEngine::QueueEngine(std::vector<QueueWork> queues, Run run, Abort abort, std::chrono::milliseconds grace)
    : run_(std::move(run)), abort_(std::move(abort)), grace_(grace) {
  ensure(!queues.empty(), "a step has at least the queue of its calling thread");
  for (QueueWork& work : queues) {
    for (const QueueWait& wait : work.waits) {
      ensure(wait.queue >= 0 && wait.queue < static_cast<int32_t>(queues.size()), "a queue waits for a queue");
    }
    queues_.push_back(std::make_unique<Queue>());
    queues_.back()->work = std::move(work);
  }
  for (size_t queue = 1; queue < queues_.size(); ++queue) {
    if (queues_[queue]->work.items() == 0) continue;
    queues_[queue]->thread = std::thread([this, queue] { work(queue); });
  }
}

QueueEngine::~QueueEngine() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (const auto& queue : queues_) {
    if (queue->thread.joinable()) queue->thread.join();
  }
}

void QueueEngine::step() {
  {
    const std::lock_guard lock(mutex_);
    busy_workers_ = 0;
    for (const auto& queue : queues_) {
      queue->finished = 0;
      if (queue->thread.joinable()) ++busy_workers_;
    }
    failed_ = false;
    failure_ = nullptr;
    ++started_steps_;
  }
  changed_.notify_all();
  run_queue(0);
  end_step();
}

void QueueEngine::work(size_t queue) {
  set_thread_count(1);  // a second team of kernel threads would fight for the cores of the first
  int64_t step = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || started_steps_ > step; });
    if (stopping_) return;
    step = started_steps_;
    lock.unlock();
    run_queue(queue);
    lock.lock();
    --busy_workers_;
    changed_.notify_all();
    if (failure_ == nullptr || failed_queue_ != queue) continue;
    // The calling thread reports the failure, unless it is stuck in a call that our peers cannot end.
    const bool returned = changed_.wait_for(lock, grace_, [&] { return returned_steps_ >= step || stopping_; });
    if (returned) continue;
    const std::string message = failure_text();
    lock.unlock();
    abort_(message);
    lock.lock();
  }
}

void QueueEngine::run_queue(size_t queue) {
  Queue& own = *queues_[queue];
  const QueueWork& work = own.work;
  try {
    for (size_t item = 0; item < work.items(); ++item) {
      for (int32_t wait = work.first_wait[item]; wait < work.first_wait[item + 1]; ++wait) {
        if (!await(work.waits[static_cast<size_t>(wait)])) return;
      }
      if (failed_) return;
      run_(queue, item);
      finish(own, static_cast<int32_t>(item) + 1);
    }
  } catch (...) {
    fail(queue, std::current_exception());
  }
}

/// False if the step has failed. Sleeps: a waiting queue leaves its core to the others.
bool QueueEngine::await(const QueueWait& wait) {
  const std::atomic<int32_t>& finished = queues_[static_cast<size_t>(wait.queue)]->finished;
  if (finished >= wait.finished) return true;
  std::unique_lock lock(mutex_);
  // Announced before looking again, as finish() counts before it looks for sleepers: one of the two sees the other.
  ++waiting_;
  changed_.wait(lock, [&] { return finished >= wait.finished || failed_; });
  --waiting_;
  return finished >= wait.finished;
}

void QueueEngine::finish(Queue& queue, int32_t items) {
  queue.finished = items;
  if (waiting_ == 0) return;
  { const std::lock_guard lock(mutex_); }  // a sleeper that has just looked must be asleep before it is woken
  changed_.notify_all();
}

void QueueEngine::fail(size_t queue, std::exception_ptr failure) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ == nullptr) {
      failure_ = std::move(failure);
      failed_queue_ = queue;
    }
    failed_ = true;
  }
  changed_.notify_all();
}

void QueueEngine::end_step() {
  std::unique_lock lock(mutex_);
  returned_steps_ = started_steps_;
  changed_.notify_all();
  const auto idle = [&] { return busy_workers_ == 0; };
  changed_.wait(lock, [&] { return idle() || failed_; });
  if (!failed_) return;
  if (!changed_.wait_for(lock, grace_, idle)) {
    const std::string message = failure_text();
    lock.unlock();
    abort_(message);
    lock.lock();
    changed_.wait(lock, idle);
  }
  const std::exception_ptr failure = failure_;
  lock.unlock();
  std::rethrow_exception(failure);
}

std::string QueueEngine::failure_text() const {
  try {
    std::rethrow_exception(failure_);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an unknown error";
  }
}

}  // namespace foresail
