// Dependencies between queues against what every pair of instructions demands.
#include "program/dependencies.h"

#include <gtest/gtest.h>

#include <array>
#include <random>
#include <tuple>

namespace foresail {
namespace {

using Edge = std::tuple<int64_t, int64_t, Queue>;

std::vector<Edge> edges_of(const Program& program) {
  std::vector<Edge> edges;
  for (const Dependency& wait : dependencies_of(program).waits) {
    edges.emplace_back(wait.waiting, wait.awaited, wait.awaited_queue);
  }
  return edges;
}

/// Offsets and sizes of these tests are counted in elements of four bytes, the smallest that there are.
constexpr int64_t kElement = 4;
TensorType elements_type(int64_t elements) { return {DType::f32, {elements}}; }

/// One block, executed once.
class OneBlock {
 public:
  OneBlock() { program.blocks.resize(1); }

  int32_t buffer(int64_t first, int64_t elements, int64_t stride = 0) {
    Buffer buffer{
        "x", Register::absolute, first * kElement, elements_type(elements), MemoryKind::scratch, stride * kElement};
    block().buffers.push_back(std::move(buffer));
    return static_cast<int32_t>(block().buffers.size()) - 1;
  }

  void add(InstructionKind kind, Queue queue, std::vector<int32_t> inputs, std::vector<int32_t> outputs,
           OpKind op = OpKind::copy) {
    Instruction instruction;
    instruction.kind = kind;
    instruction.op = op;
    instruction.queue = queue;
    instruction.inputs = std::move(inputs);
    instruction.outputs = std::move(outputs);
    block().instructions.push_back(std::move(instruction));
  }

  Program finish() {
    program.calls[static_cast<size_t>(Phase::begin_step)] = {{Call{}}};
    program.schedule = {{Phase::begin_step, 0, -1, 0, 0, true}};
    return program;
  }

  Block& block() { return program.blocks[0]; }
  Program program;
};

TEST(Dependencies, AProgramOfOneQueueHasNone) {
  OneBlock made;
  const int32_t x = made.buffer(0, 8), y = made.buffer(8, 8);
  made.add(InstructionKind::op, Queue::compute, {x}, {y});
  made.add(InstructionKind::op, Queue::compute, {y}, {x});
  EXPECT_TRUE(edges_of(made.finish()).empty());
}

TEST(Dependencies, AReaderWaitsForTheWriterAndAnOverwriteForTheReader) {
  OneBlock made;
  const int32_t x = made.buffer(0, 8), y = made.buffer(8, 8);
  made.add(InstructionKind::op, Queue::compute, {}, {x}, OpKind::fill_zero);  // 0
  made.add(InstructionKind::all_reduce, Queue::bulk_comm, {x}, {x});          // 1 waits for 0
  made.add(InstructionKind::op, Queue::compute, {}, {y}, OpKind::fill_zero);  // 2 needs nobody
  made.add(InstructionKind::op, Queue::compute, {x}, {y});                    // 3 waits for 1
  made.add(InstructionKind::all_reduce, Queue::bulk_comm, {y}, {y});          // 4 waits for 3
  const std::vector<Edge> expected = {{1, 0, Queue::compute}, {3, 1, Queue::bulk_comm}, {4, 3, Queue::compute}};
  EXPECT_EQ(edges_of(made.finish()), expected);
}

TEST(Dependencies, TwoReadersOfOneBufferDoNotWaitForEachOther) {
  OneBlock made;
  const int32_t x = made.buffer(0, 8), y = made.buffer(8, 8), z = made.buffer(16, 8);
  made.add(InstructionKind::op, Queue::compute, {x}, {y});
  made.add(InstructionKind::op, Queue::inline_comm, {x}, {z});
  EXPECT_TRUE(edges_of(made.finish()).empty());
}

TEST(Dependencies, AnAccumulatedOutputIsReadToo) {
  OneBlock made;
  const int32_t g = made.buffer(0, 8), sum = made.buffer(8, 8);
  made.add(InstructionKind::op, Queue::bulk_comm, {sum}, {g});
  made.add(InstructionKind::op, Queue::compute, {g}, {sum}, OpKind::squared_norm);
  const std::vector<Edge> expected = {{1, 0, Queue::bulk_comm}};
  EXPECT_EQ(edges_of(made.finish()), expected);
}

TEST(Dependencies, AShardStrideCountsTheSharesOfAllRanks) {
  OneBlock made;
  made.program.mesh.dp = made.program.mesh.shard = 4;
  const int32_t share = made.buffer(0, 8, 8), last = made.buffer(24, 8), beyond = made.buffer(32, 8);
  made.add(InstructionKind::op, Queue::compute, {}, {share}, OpKind::fill_zero);
  made.add(InstructionKind::all_reduce, Queue::bulk_comm, {beyond}, {beyond});
  made.add(InstructionKind::all_reduce, Queue::bulk_comm, {last}, {last});
  const std::vector<Edge> expected = {{2, 0, Queue::compute}};
  EXPECT_EQ(edges_of(made.finish()), expected);
}

TEST(Dependencies, ASentBufferIsReadUntilItsWaitSend) {
  OneBlock made;
  const int32_t x = made.buffer(0, 8);
  made.add(InstructionKind::send, Queue::pipeline, {x}, {});
  made.add(InstructionKind::wait_send, Queue::pipeline, {}, {});
  made.add(InstructionKind::op, Queue::compute, {}, {x}, OpKind::fill_zero);
  const std::vector<Edge> expected = {{2, 1, Queue::pipeline}};
  EXPECT_EQ(edges_of(made.finish()), expected);
}

TEST(Dependencies, WaitSendOnAnotherQueueComesAfterTheSendsOfItsChannelOnly) {
  OneBlock made;
  const int32_t x = made.buffer(0, 8), y = made.buffer(8, 8);
  made.add(InstructionKind::send, Queue::pipeline, {x}, {});
  made.add(InstructionKind::send, Queue::pipeline, {y}, {});
  made.block().instructions.back().channel = 1;
  made.add(InstructionKind::wait_send, Queue::compute, {}, {});
  const std::vector<Edge> expected = {{2, 0, Queue::pipeline}};
  EXPECT_EQ(edges_of(made.finish()), expected);
}

TEST(Dependencies, SlotsOfMicroBatchesAreTheirOwnUntilTheyAreReused) {
  OneBlock made;
  constexpr int64_t kSlot = 8 * kElement;
  made.program.chunks = {{.layers = 1, .slot_bytes = kSlot, .slots = 2}};
  made.program.blocks.resize(2);
  const Buffer slot{"x_in", Register::x_in, 0, elements_type(8), MemoryKind::activations};
  for (Block& block : made.program.blocks) block.buffers = {slot};
  Instruction receive, read;
  receive.kind = InstructionKind::receive;
  receive.queue = Queue::pipeline;
  receive.outputs = {0};
  read.op = OpKind::copy;
  read.inputs = {0};
  made.program.blocks[0].instructions = {receive};
  made.program.blocks[1].instructions = {read};
  Call arrives, computes;
  computes.block = 1;
  made.program.calls[static_cast<size_t>(Phase::forward)] = {{arrives}};
  made.program.calls[static_cast<size_t>(Phase::backward)] = {{computes}};
  const auto entry = [](Phase phase, int32_t micro_batch, int32_t in) {
    return ScheduleEntry{.phase = phase, .micro_batch = micro_batch, .slot = in, .slot_offset = in * kSlot};
  };
  made.program.schedule = {entry(Phase::forward, 0, 0), entry(Phase::forward, 1, 1), entry(Phase::backward, 0, 0),
                           entry(Phase::forward, 2, 0), entry(Phase::backward, 1, 1)};
  // 0 and 1 arrive; 2 reads what 0 brought; 3 overwrites it; 4 reads what 1 brought (and 3 is no reason to wait).
  const std::vector<Edge> expected = {{2, 0, Queue::pipeline}, {3, 2, Queue::compute}, {4, 1, Queue::pipeline}};
  EXPECT_EQ(edges_of(made.program), expected);
}

TEST(Dependencies, SkippedCallsAreNotCounted) {
  OneBlock made;
  const int32_t x = made.buffer(0, 8);
  made.add(InstructionKind::op, Queue::compute, {}, {x}, OpKind::fill_zero);
  made.program.blocks.resize(2);
  made.program.blocks[1] = made.program.blocks[0];
  made.program.blocks[1].instructions[0].queue = Queue::bulk_comm;
  Call always, at_last;
  at_last.block = 1;
  at_last.last_only = true;
  made.program.chunks.resize(1);
  made.program.calls[static_cast<size_t>(Phase::backward)] = {{always, at_last}};
  made.program.schedule = {{Phase::backward, 0, 0, 0, 0, false}, {Phase::backward, 0, 1, 0, 0, true}};
  const std::vector<Edge> expected = {{2, 1, Queue::compute}};
  EXPECT_EQ(edges_of(made.program), expected);
}

/// A Program of random small operators over a small arena, on up to five queues, and what each executed one touches.
struct Random {
  OneBlock made;
  struct Access {
    size_t queue;
    std::vector<std::pair<int64_t, bool>> bytes;  // address, written
  };
  std::vector<Access> accesses;

  explicit Random(unsigned seed) {
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const int queues = 2 + below(4), arena = 8 + below(60), count = 40;
    for (int i = 0; i < count; ++i) {
      Access access{static_cast<size_t>(below(queues)), {}};
      std::vector<int32_t> inputs, outputs;
      for (int operand = 0; operand < 3; ++operand) {
        const int64_t begin = below(arena), bytes = 1 + below(6);
        const bool writes = operand == 2;
        (writes ? outputs : inputs).push_back(made.buffer(begin, bytes));
        for (int64_t b = begin; b < begin + bytes; ++b) access.bytes.emplace_back(b, writes);
      }
      made.add(InstructionKind::op, static_cast<Queue>(access.queue), inputs, outputs);
      accesses.push_back(std::move(access));
    }
  }

  bool collide(size_t a, size_t b) const {
    for (const auto& [x, x_written] : accesses[a].bytes) {
      for (const auto& [y, y_written] : accesses[b].bytes) {
        if (x == y && (x_written || y_written)) return true;
      }
    }
    return false;
  }
};

TEST(Dependencies, OrderEveryCollidingPairAndWaitOnlyForCollisions) {
  size_t waits = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    const Random random(seed);
    OneBlock copy = random.made;
    const std::vector<Edge> edges = edges_of(copy.finish());
    waits += edges.size();
    const size_t count = random.accesses.size();
    // after[i][q]: the latest instruction of queue q that is known to have finished when i starts.
    std::vector<std::array<int64_t, kQueueCount>> after(count);
    std::array<int64_t, kQueueCount> last_of_queue;
    last_of_queue.fill(-1);
    size_t edge = 0;
    for (size_t i = 0; i < count; ++i) {
      after[i].fill(-1);
      const auto join = [&](int64_t earlier) {
        if (earlier < 0) return;
        const auto& known = after[static_cast<size_t>(earlier)];
        for (size_t q = 0; q < kQueueCount; ++q) after[i][q] = std::max(after[i][q], known[q]);
        auto& own = after[i][random.accesses[static_cast<size_t>(earlier)].queue];
        own = std::max(own, earlier);
      };
      const size_t queue = random.accesses[i].queue;
      join(last_of_queue[queue]);
      for (; edge < edges.size() && std::get<0>(edges[edge]) == static_cast<int64_t>(i); ++edge) {
        const auto [waiting, awaited, awaited_queue] = edges[edge];
        ASSERT_LT(awaited, waiting);
        EXPECT_EQ(random.accesses[static_cast<size_t>(awaited)].queue, static_cast<size_t>(awaited_queue));
        EXPECT_NE(static_cast<size_t>(awaited_queue), queue);
        EXPECT_TRUE(random.collide(i, static_cast<size_t>(awaited))) << "seed " << seed << ", instruction " << i;
        join(awaited);
      }
      for (size_t j = 0; j < i; ++j) {
        if (!random.collide(i, j)) continue;
        EXPECT_GE(after[i][random.accesses[j].queue], static_cast<int64_t>(j))
            << "seed " << seed << ": " << i << ", " << j;
      }
      last_of_queue[queue] = static_cast<int64_t>(i);
    }
    EXPECT_EQ(edge, edges.size());
  }
  EXPECT_GT(waits, 1000u);
}

}  // namespace
}  // namespace foresail
