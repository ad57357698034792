#include "runtime/executor/queue_engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <random>

#include "core/error.h"
#include "core/parallel.h"
#include "tests/executor/allocation_counter.h"

namespace foresail {
namespace {

using namespace std::chrono_literals;

/// Queues with `items` items each and no waits.
std::vector<QueueWork> free_queues(const std::vector<int32_t>& items) {
  std::vector<QueueWork> queues;
  for (const int32_t count : items) {
    queues.emplace_back();
    queues.back().first_wait.assign(static_cast<size_t>(count) + 1, 0);
  }
  return queues;
}

const QueueEngine::Abort kNoAbort = [](const std::string& message) { ADD_FAILURE() << "aborted: " << message; };

/// A random step of many queues: items in one issue order, each on a random queue, with waits for earlier ones.
struct RandomStep {
  std::vector<QueueWork> queues;
  std::vector<std::vector<int32_t>> cells;                 ///< by queue and item: the cell that it writes
  std::vector<std::vector<std::vector<int32_t>>> sources;  ///< the cells that it reads

  RandomStep(size_t queue_count, int32_t items, uint32_t seed) : cells(queue_count), sources(queue_count) {
    queues.resize(queue_count);
    std::mt19937 random(seed);
    std::vector<QueueWait> place;  // by cell: its queue and how far that must be
    for (int32_t cell = 0; cell < items; ++cell) {
      const size_t queue = random() % queue_count;
      QueueWork& work = queues[queue];
      auto& read = sources[queue].emplace_back();
      for (uint32_t each = random() % 3; each > 0 && cell > 0; --each) {
        const int32_t source = static_cast<int32_t>(random() % static_cast<uint32_t>(cell));
        read.push_back(source);
        if (place[static_cast<size_t>(source)].queue != static_cast<int32_t>(queue)) {
          work.waits.push_back(place[static_cast<size_t>(source)]);
        }
      }
      work.first_wait.push_back(static_cast<int32_t>(work.waits.size()));
      cells[queue].push_back(cell);
      place.push_back({static_cast<int32_t>(queue), static_cast<int32_t>(cells[queue].size())});
    }
  }
};

TEST(QueueEngine, AnItemSeesWhatTheItemsItWaitsForWrote) {
  constexpr int32_t kItems = 300;
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    const RandomStep step(4, kItems, seed);
    std::vector<int64_t> values(kItems, 0);  // plain memory: only the waits order it
    std::atomic<int> stale{0};
    int64_t round = 0;
    QueueEngine engine(
        step.queues,
        [&](size_t queue, size_t item) {
          for (const int32_t source : step.sources[queue][item]) {
            if (values[static_cast<size_t>(source)] != round) ++stale;
          }
          values[static_cast<size_t>(step.cells[queue][item])] = round;
        },
        kNoAbort);
    for (round = 1; round <= 100; ++round) {
      engine.step();
      ASSERT_EQ(std::count(values.begin(), values.end(), round), kItems) << "a step ends when all queues are empty";
    }
    EXPECT_EQ(stale, 0);
  }
}

TEST(QueueEngine, QueuesRunBesideEachOtherOnThreadsOfTheirOwn) {
  // Each of three items ends only when the other two have begun.
  std::atomic<int> begun{0};
  std::vector<std::thread::id> threads(3);
  QueueEngine engine(
      free_queues({1, 1, 1}),
      [&](size_t queue, size_t) {
        threads[queue] = std::this_thread::get_id();
        ++begun;
        while (begun < 3) std::this_thread::sleep_for(100us);
      },
      kNoAbort);
  engine.step();
  EXPECT_EQ(threads[0], std::this_thread::get_id());
  EXPECT_NE(threads[1], threads[0]);
  EXPECT_NE(threads[1], threads[2]);
}

TEST(QueueEngine, AWaitingQueueLeavesItsCoreToTheOthers) {
  auto queues = free_queues({1, 0, 0, 0});
  for (size_t queue = 1; queue < 4; ++queue) {
    queues[queue].waits = {{.queue = 0, .finished = 1}};
    queues[queue].first_wait = {0, 1};
  }
  QueueEngine engine(
      std::move(queues), [&](size_t queue, size_t) { std::this_thread::sleep_for(queue == 0 ? 300ms : 0ms); },
      kNoAbort);
  const auto used = [] {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  };
  const double before = used();
  engine.step();
  EXPECT_LT(used() - before, 0.1) << "three threads waited for 0.3 s";
}

TEST(QueueEngine, KernelsBesideTheComputeQueueHaveATeamOfOne) {
  set_thread_count(3);
  std::vector<int> teams(2);
  QueueEngine engine(
      free_queues({1, 1}), [&](size_t queue, size_t) { teams[queue] = thread_count(); }, kNoAbort);
  engine.step();
  set_thread_count(1);
  EXPECT_EQ(teams, (std::vector<int>{3, 1}));
}

TEST(QueueEngine, AStepAllocatesNothing) {
  auto queues = free_queues({50, 50});
  for (int32_t item = 0; item < 50; ++item) queues[1].waits.push_back({.queue = 0, .finished = item + 1});
  for (int32_t item = 0; item <= 50; ++item) queues[1].first_wait[static_cast<size_t>(item)] = item;
  QueueEngine engine(
      std::move(queues), [](size_t, size_t) {}, kNoAbort);
  engine.step();
  const int64_t before = testing::allocations();
  for (int step = 0; step < 20; ++step) engine.step();
  EXPECT_EQ(testing::allocations(), before);
}

/// Two queues of three items; item 1 of `failing` throws if `armed`, and the other queue waits for it.
struct FailingStep {
  size_t failing = 0;
  bool armed = true;
  std::array<std::atomic<int>, 2> ran{};
  QueueEngine engine;

  explicit FailingStep(size_t queue)
      : failing(queue),
        engine(
            work(queue), [this](size_t queue, size_t item) { run(queue, item); }, kNoAbort) {}

  static std::vector<QueueWork> work(size_t failing) {
    auto queues = free_queues({3, 3});
    QueueWork& waiting = queues[1 - failing];
    waiting.waits = {{.queue = static_cast<int32_t>(failing), .finished = 2}};
    waiting.first_wait = {0, 0, 1, 1};
    return queues;
  }
  void run(size_t queue, size_t item) {
    if (armed && queue == failing && item == 1) throw_environment("kernel", "it failed", "mend it");
    ++ran[queue];
  }
};

TEST(QueueEngine, AFailureOnAnyQueueEndsTheStepAndIsThrownByTheCaller) {
  for (const size_t failing : {size_t{0}, size_t{1}}) {
    FailingStep step(failing);
    for (int round = 0; round < 50; ++round) {
      step.ran[0] = step.ran[1] = 0;
      EXPECT_THROW(step.engine.step(), Error);
      EXPECT_EQ(step.ran[failing], 1) << "nothing runs behind the failure";
      EXPECT_LE(step.ran[1 - failing], 1) << "nor what waits for it";
    }
    step.armed = false;
    step.ran[0] = step.ran[1] = 0;
    step.engine.step();
    EXPECT_EQ(step.ran[0] + step.ran[1], 6) << "the next step starts afresh";
  }
}

TEST(QueueEngine, AThreadThatAFailureLeavesStuckEndsTheProcess) {
  for (const size_t stuck : {size_t{0}, size_t{1}}) {  // the caller in the kernel of a worker's failure, and vice versa
    std::atomic<bool> in_call{false}, released{false};
    std::string message;
    QueueEngine engine(
        free_queues({1, 1}),
        [&](size_t queue, size_t) {
          if (queue == stuck) {
            in_call = true;
            while (!released) std::this_thread::sleep_for(1ms);  // as in a collective whose peers are gone
          } else {
            while (!in_call) std::this_thread::sleep_for(1ms);
            throw_environment("message from rank 1", "8 bytes arrived where 16 were expected", "mend it");
          }
        },
        [&](const std::string& text) {
          message = text;
          released = true;  // the real one does not return
        },
        20ms);
    EXPECT_THROW(engine.step(), Error);
    EXPECT_NE(message.find("8 bytes arrived"), std::string::npos);
  }
}

TEST(QueueEngine, QueuesThatDoNotExistCannotBeWaitedFor) {
  auto queues = free_queues({1});
  queues[0].waits = {{.queue = 1, .finished = 1}};
  queues[0].first_wait = {0, 1};
  EXPECT_THROW(QueueEngine(
                   std::move(queues), [](size_t, size_t) {}, kNoAbort),
               Error);
  EXPECT_THROW(QueueEngine(
                   {}, [](size_t, size_t) {}, kNoAbort),
               Error);
}

}  // namespace
}  // namespace foresail
