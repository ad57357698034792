// Queues beside each other give the bits of serial execution, on ranks that are threads; and if a wait is missing, it shows.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "core/error.h"
#include "program/dependencies.h"
#include "tests/executor/allocation_counter.h"
#include "tests/executor/fakes.h"
#include "tests/executor/overlap_program.h"
#include "tests/executor/thread_world.h"

namespace foresail {
namespace {

using namespace std::chrono_literals;
using testing::HookedDevice;
using testing::overlap_program;
using testing::run_overlap;
using testing::run_thread_world;
using testing::ThreadWorldCommunicator;

using Arenas = std::vector<std::vector<std::byte>>;  ///< by rank

// Groups of equal members on different queues: context with shard, and context with replica.
constexpr Mesh kTwoShards{.pp = 1, .dp = 1, .cp = 2, .tp = 1, .shard = 2};
constexpr Mesh kTwoReplicas{.pp = 1, .dp = 1, .cp = 2, .tp = 1, .shard = 1};
constexpr Mesh kFourRanks{.pp = 1, .dp = 2, .cp = 2, .tp = 1, .shard = 2};

/// Sleeps for a moment that differs from call to call, so that queues overtake each other in many ways.
void jitter() {
  static std::atomic<uint32_t> calls{0};
  const uint32_t call = calls.fetch_add(1, std::memory_order_relaxed);
  if (call * 2654435761u % 7 < 3) std::this_thread::sleep_for(std::chrono::microseconds(call * 40503u % 97));
}

Arenas run_all(const Program& program, int steps, const ExecutorOptions& options, bool shaken) {
  Arenas arenas(static_cast<size_t>(program.mesh.size()));
  run_thread_world(program.mesh.size(), [&](ThreadWorldCommunicator& communicator) {
    HookedDevice device;
    if (shaken) {
      device.before = [](int) { jitter(); };
      communicator.before_collective = [](GroupId) { jitter(); };
    }
    QueueMode mode{};
    arenas[static_cast<size_t>(communicator.rank())] =
        run_overlap(program, communicator, device, steps, options, &mode);
    EXPECT_EQ(mode, options.serialise_queues ? QueueMode::serial : QueueMode::concurrent);
  });
  return arenas;
}

bool all_finite(const std::vector<std::byte>& arena) {
  std::vector<double> values(arena.size() / sizeof(double));
  std::memcpy(values.data(), arena.data(), values.size() * sizeof(double));
  return std::all_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); });
}

TEST(Overlap, ConcurrentQueuesGiveTheBitsOfSerialOnes) {
  for (const Mesh& mesh : {kTwoShards, kTwoReplicas, kFourRanks}) {
    const Program program = overlap_program(mesh);
    for (const int steps : {1, 20}) {
      const Arenas serial = run_all(program, steps, {.serialise_queues = true, .dependencies = {}}, false);
      for (int repetition = 0; repetition < 3; ++repetition) {
        EXPECT_TRUE(run_all(program, steps, {}, repetition > 0) == serial) << mesh.size() << " ranks";
      }
      EXPECT_FALSE(serial[0] == serial[1]) << "ranks hold numbers of their own";
      EXPECT_TRUE(all_finite(serial[0])) << "infinities would hide differences";
    }
  }
}

TEST(Overlap, OneStepChangesWhatTheNextOneComputes) {
  const Program program = overlap_program(kTwoShards);
  const ExecutorOptions serial{.serialise_queues = true, .dependencies = {}};
  EXPECT_FALSE(run_all(program, 1, serial, false) == run_all(program, 2, serial, false));
}

/// Opened once; passing it takes at most `patience`.
class Gate {
 public:
  explicit Gate(std::chrono::milliseconds patience) : patience_(patience) {}
  void open() {
    {
      const std::lock_guard lock(mutex_);
      open_ = true;
    }
    opened_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    opened_.wait_for(lock, patience_, [&] { return open_; });
    open_ = true;  // holds up the first passage only
  }

 private:
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

constexpr int kGradientSum = 3, kShareUpdate = 5;  // kernels of the overlap Program in the order of binding

/// One step in which `first` is held up until `second`, which must wait for it, has happened or patience is over.
Arenas run_held_up(const Program& program, const ExecutorOptions& options, bool hold_kernel, int kernel, GroupKind kind,
                   std::chrono::milliseconds patience) {
  const MeshGroups groups = mesh_groups(program.mesh);
  Arenas arenas(static_cast<size_t>(program.mesh.size()));
  run_thread_world(program.mesh.size(), [&](ThreadWorldCommunicator& communicator) {
    Gate gate(patience);
    const GroupId group = groups.index(kind, communicator.rank());
    HookedDevice device;
    if (hold_kernel) {
      device.before = [&](int each) {
        if (each == kernel) gate.pass();
      };
      communicator.after_collective = [&](GroupId each) {
        if (each == group) gate.open();
      };
    } else {
      communicator.before_collective = [&](GroupId each) {
        if (each == group) gate.pass();
      };
      device.after = [&](int each) {
        if (each == kernel) gate.open();
      };
    }
    arenas[static_cast<size_t>(communicator.rank())] = run_overlap(program, communicator, device, 1, options);
  });
  return arenas;
}

/// The dependencies but for what this executed instruction waits for on queue `awaited`.
Dependencies without(const Program& program, int64_t waiting, Queue awaited) {
  Dependencies dependencies = dependencies_of(program);
  const auto removed = std::erase_if(dependencies.waits, [&](const Dependency& each) {
    return each.waiting == waiting && each.awaited_queue == awaited;
  });
  EXPECT_EQ(removed, 1u) << "instruction " << waiting << " has such a wait";
  return dependencies;
}

int64_t first_number(const Program& program, size_t block, InstructionKind kind) {
  const auto& instructions = program.blocks[block].instructions;
  const auto found = std::find_if(instructions.begin(), instructions.end(),
                                  [&](const Instruction& each) { return each.kind == kind; });
  return found - instructions.begin();
}

TEST(Overlap, AReductionThatDoesNotWaitForItsOperandIsNoticed) {
  const Program program = overlap_program(kTwoReplicas);
  const Arenas serial = run_all(program, 1, {.serialise_queues = true, .dependencies = {}}, false);
  const auto held_up = [&](const ExecutorOptions& options, std::chrono::milliseconds patience) {
    return run_held_up(program, options, true, kGradientSum, GroupKind::replica, patience);
  };
  EXPECT_TRUE(held_up({}, 50ms) == serial);
  const int64_t reduction = first_number(program, 0, InstructionKind::all_reduce);
  ExecutorOptions options;
  options.dependencies = without(program, reduction, Queue::compute);
  EXPECT_FALSE(held_up(options, 10s) == serial);
}

TEST(Overlap, AnOperatorThatDoesNotWaitForAReductionIsNoticed) {
  const Program program = overlap_program(kTwoShards);
  const Arenas serial = run_all(program, 1, {.serialise_queues = true, .dependencies = {}}, false);
  const auto held_up = [&](const ExecutorOptions& options, std::chrono::milliseconds patience) {
    return run_held_up(program, options, false, kShareUpdate, GroupKind::shard, patience);
  };
  EXPECT_TRUE(held_up({}, 50ms) == serial);
  const auto layers = static_cast<int64_t>(program.calls[static_cast<size_t>(Phase::forward)][0].size());
  const int64_t before_update =
      program.micro_batches * layers * static_cast<int64_t>(program.blocks[0].instructions.size());
  const int64_t scatter = first_number(program, 1, InstructionKind::reduce_scatter);
  ExecutorOptions options;
  options.dependencies = without(program, before_update + scatter + 1, Queue::bulk_comm);
  EXPECT_FALSE(held_up(options, 10s) == serial);
}

TEST(Overlap, TheTraceOfConcurrentQueuesIsInOrderOfTimeAndComplete) {
  const Program program = overlap_program(kTwoShards);
  run_thread_world(2, [&](ThreadWorldCommunicator& communicator) {
    communicator.create_groups(mesh_groups(program.mesh).members);
    HookedDevice device;
    Arena arena(program.arena.bytes);
    Executor executor(program, device, &communicator, arena, communicator.rank());
    executor.enable_trace();
    executor.step();
    executor.step();
    const auto& trace = executor.trace();
    ASSERT_EQ(trace.size(), 2u * 4 * 11 + 4 * 3);
    std::array<double, 5> end{};
    std::array<int, 5> events{};
    for (size_t i = 0; i < trace.size(); ++i) {
      const TraceEvent& event = trace[i];
      EXPECT_GE(event.begin_seconds, i == 0 ? 0 : trace[i - 1].begin_seconds);
      EXPECT_GE(event.begin_seconds, end[static_cast<size_t>(event.queue)]) << "one after the other on a queue";
      end[static_cast<size_t>(event.queue)] = event.end_seconds;
      ++events[static_cast<size_t>(event.queue)];
      const Call& call = program.calls[static_cast<size_t>(event.phase)][static_cast<size_t>(event.chunk)]
                                      [static_cast<size_t>(event.call)];
      const Block& block = program.blocks[static_cast<size_t>(call.block)];
      EXPECT_EQ(block.instructions[static_cast<size_t>(event.instruction)].queue, event.queue);
    }
    EXPECT_EQ(events, (std::array<int, 5>{8 * 4 + 4, 8 * 2, 8 * 2 + 8, 8 * 3, 0}));
  });
}

TEST(Overlap, AStepOfConcurrentQueuesAllocatesNothing) {
  const Program program = overlap_program({});
  testing::RecordingDevice device;
  device.record = false;
  const auto communicator = make_local_communicator();
  communicator->create_groups(mesh_groups(program.mesh).members);
  Arena arena(program.arena.bytes);
  Executor executor(program, device, communicator.get(), arena, 0);
  ASSERT_EQ(executor.queue_mode(), QueueMode::concurrent);
  executor.enable_trace();
  executor.step();
  const int64_t before = testing::allocations();
  for (int step = 0; step < 10; ++step) executor.step();
  EXPECT_EQ(testing::allocations(), before);
}

TEST(Overlap, AnErrorOnAnyQueueComesOutOfTheStep) {
  const Program program = overlap_program({});
  for (const int failing : {0, 4}) {  // a kernel of the compute queue, one of the bulk queue
    HookedDevice device;
    device.before = [&](int kernel) {
      if (kernel == failing) throw_environment("kernel", "it failed", "mend it");
    };
    Arena arena(program.arena.bytes);
    Executor executor(program, device, nullptr, arena, 0);
    EXPECT_THROW(executor.step(), Error);
  }
}

TEST(Overlap, ACommunicatorForOneThreadIsRefusedUnlessQueuesAreSerialised) {
  const Program program = overlap_program({});
  testing::RecordingDevice device;
  testing::RecordingCommunicator communicator(0, 1);
  communicator.create_groups(mesh_groups(program.mesh).members);
  Arena arena(program.arena.bytes);
  try {
    Executor executor(program, device, &communicator, arena, 0);
    FAIL() << "several threads would have used it";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::environment_failed);
  }
  const ExecutorOptions serial{.serialise_queues = true, .dependencies = {}};
  Executor executor(program, device, &communicator, arena, 0, serial);
  EXPECT_EQ(executor.queue_mode(), QueueMode::serial);
}

}  // namespace
}  // namespace foresail
