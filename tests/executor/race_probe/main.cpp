// Two queues that touch the same bytes, for the thread sanitizer: with the wait between them ("ordered") it has nothing to
// report, without it ("racing") it must. A planted race that goes unreported would mean that clean runs prove nothing.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>

#include "runtime/executor/queue_engine.h"

int main(int argc, char** argv) {
  const bool racing = argc == 2 && std::strcmp(argv[1], "racing") == 0;
  if (!racing && (argc != 2 || std::strcmp(argv[1], "ordered") != 0)) {
    std::fprintf(stderr, "usage: queue_race_probe ordered|racing\n");
    return 2;
  }
  std::vector<foresail::QueueWork> queues(2);
  queues[0].first_wait = {0, 0};
  queues[1].first_wait = {0, 0};
  if (!racing) {
    queues[1].waits = {{.queue = 0, .finished = 1}};
    queues[1].first_wait = {0, 1};
  }
  int64_t shared = 0, seen = 0;
  std::atomic<int> begun{0};
  foresail::QueueEngine engine(
      std::move(queues),
      [&](size_t queue, size_t) {
        // Racing items touch the bytes while both are running, so that no lock of the engine comes in between by chance;
        // relaxed, so that this meeting itself orders nothing.
        begun.fetch_add(1, std::memory_order_relaxed);
        while (racing && begun.load(std::memory_order_relaxed) % 2 != 0) std::this_thread::yield();
        if (queue == 0) {
          shared = 42;
        } else {
          seen = shared;
        }
      },
      [](const std::string&) {});
  engine.step();
  if (!racing && seen != 42) return 1;
  std::puts("done");
  return 0;
}
