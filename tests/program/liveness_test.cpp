// The least memory of a step, computed by hand for small Programs; gaps of compiled ones.
#include <gtest/gtest.h>

#include <algorithm>

#include "program/check.h"
#include "program/interval_set.h"
#include "tests/program/check_support.h"

namespace foresail {
namespace {

using testing::stages_of;

/// Instructions of one forward entry over an arena of 1024 bytes without persistent part; buffers are given as
/// {offset, floats}.
class HandMade {
 public:
  explicit HandMade(int32_t shard = 1) {
    program_.mesh.dp = program_.mesh.shard = shard;
    program_.arena.bytes = 1024;
    program_.chunks.push_back({});
    program_.calls[static_cast<size_t>(Phase::begin_step)] = {{Call{}}};
    program_.schedule.push_back({Phase::begin_step});
    program_.blocks.push_back({"block", {}, {}});
  }

  int32_t buffer(int64_t offset, int64_t floats, int64_t stride = 0) {
    auto& buffers = program_.blocks[0].buffers;
    buffers.push_back({"b", Register::absolute, offset, {DType::f32, {floats}}, MemoryKind::scratch, stride});
    return static_cast<int32_t>(buffers.size()) - 1;
  }
  void op(OpKind kind, std::vector<int32_t> inputs, std::vector<int32_t> outputs) {
    Instruction& instruction = add(InstructionKind::op, std::move(inputs), std::move(outputs));
    instruction.op = kind;
  }
  Instruction& add(InstructionKind kind, std::vector<int32_t> inputs, std::vector<int32_t> outputs) {
    Instruction instruction;
    instruction.kind = kind;
    instruction.group = GroupKind::shard;
    instruction.inputs = std::move(inputs);
    instruction.outputs = std::move(outputs);
    program_.blocks[0].instructions.push_back(std::move(instruction));
    return program_.blocks[0].instructions.back();
  }
  const Program& program() const { return program_; }

 private:
  Program program_;
};

TEST(LivenessBound, CountsFromFirstWriteToLastRead) {
  HandMade made;
  const int32_t a = made.buffer(0, 16), b = made.buffer(64, 16), c = made.buffer(128, 16), d = made.buffer(192, 16);
  made.op(OpKind::fill_zero, {}, {a});
  made.op(OpKind::copy, {a}, {b});  // a dies here
  made.op(OpKind::copy, {b}, {c});
  made.op(OpKind::add, {b, c}, {d});
  EXPECT_EQ(liveness_bound(made.program()), 3 * 64);
}

TEST(LivenessBound, KeepsOneBufferForOperatorsInPlace) {
  HandMade made;
  const int32_t a = made.buffer(0, 16), b = made.buffer(64, 16);
  made.op(OpKind::fill_zero, {}, {a});
  made.op(OpKind::fill_zero, {}, {b});
  made.op(OpKind::add, {a, b}, {a});
  made.op(OpKind::copy, {a}, {b});
  EXPECT_EQ(liveness_bound(made.program()), 2 * 64);
}

TEST(LivenessBound, LetsAFlatRangeLiveAsLongAsAnyPartOfIt) {
  HandMade made;
  const int32_t flat = made.buffer(0, 64), part = made.buffer(64, 16), other = made.buffer(512, 32);
  made.op(OpKind::fill_zero, {}, {flat});
  made.op(OpKind::fill_zero, {}, {other});
  made.op(OpKind::add, {part, part}, {part});
  EXPECT_EQ(liveness_bound(made.program()), 256 + 128);
}

TEST(LivenessBound, KeepsOnlyTheOwnShareAfterAReduceScatter) {
  HandMade made(4);
  const int32_t whole = made.buffer(0, 64), own = made.buffer(0, 16, 64), later = made.buffer(256, 48);
  made.op(OpKind::fill_zero, {}, {whole});
  made.add(InstructionKind::reduce_scatter, {whole}, {own});
  made.op(OpKind::fill_zero, {}, {later});
  made.op(OpKind::squared_norm, {own}, {made.buffer(512, 1)});
  EXPECT_EQ(liveness_bound(made.program()), 256);  // 64 + 192, or 256 before
}

TEST(LivenessBound, CountsAGatheredRangeOnceWhereItHoldsItsOwnShare) {
  HandMade made(4);
  const int32_t own = made.buffer(0, 16, 64), whole = made.buffer(0, 64);
  made.op(OpKind::fill_zero, {}, {own});
  made.add(InstructionKind::all_gather, {own}, {whole});
  made.op(OpKind::copy, {whole}, {made.buffer(256, 64)});
  EXPECT_EQ(liveness_bound(made.program()), 512);
  HandMade alone(4);
  const int32_t part = alone.buffer(0, 16, 64);
  alone.op(OpKind::fill_zero, {}, {part});
  alone.add(InstructionKind::all_gather, {part}, {alone.buffer(0, 64)});
  EXPECT_EQ(liveness_bound(alone.program()), 256);
}

TEST(LivenessBound, KeepsWhatIsSentUntilTheWait) {
  for (const bool waits_first : {true, false}) {
    HandMade made;
    const int32_t a = made.buffer(0, 16), b = made.buffer(64, 16);
    made.op(OpKind::fill_zero, {}, {a});
    made.add(InstructionKind::send, {a}, {});
    if (waits_first) made.add(InstructionKind::wait_send, {}, {});
    made.op(OpKind::fill_zero, {}, {b});
    if (!waits_first) made.add(InstructionKind::wait_send, {}, {});
    EXPECT_EQ(liveness_bound(made.program()), waits_first ? 64 : 128);
  }
}

TEST(LivenessBound, IsReachedByNoLayoutFromBelow) {
  for (const char* strategy : {"micro_batch=2", "pp=2,schedule=zb-v,virtual_stages=2", "dp=2,zero_stage=3",
                               "dp=2,zero_stage=2,overlap=true"}) {
    for (const Program& program : stages_of(strategy)) {
      EXPECT_GT(liveness_bound(program), program.arena.persistent_bytes) << strategy;
      EXPECT_LE(liveness_bound(program), program.arena.bytes) << strategy;
    }
  }
}

TEST(ArenaGaps, AreTouchedByNoShardRank) {
  for (const char* strategy : {"micro_batch=2", "dp=2,zero_stage=1", "dp=4,zero_group=2,zero_stage=3"}) {
    const Program program = stages_of(strategy)[0];
    for (const Segment& gap : arena_gaps(program)) {
      EXPECT_GT(gap.bytes, 0);
      EXPECT_LE(gap.offset + gap.bytes, program.arena.bytes);
    }
  }
  HandMade made(4);
  made.op(OpKind::fill_zero, {}, {made.buffer(0, 16, 64)});
  const auto gaps = arena_gaps(made.program());
  ASSERT_EQ(gaps.size(), 1u);
  EXPECT_EQ(gaps[0].offset, 256);
  EXPECT_EQ(gaps[0].bytes, 1024 - 256);
}

TEST(IntervalSet, MergesAndCuts) {
  IntervalSet set;
  set.add(0, 10);
  set.add(20, 30);
  EXPECT_FALSE(set.covers(0, 30));
  set.add(10, 20);
  EXPECT_TRUE(set.covers(0, 30));
  set.remove(5, 25);
  EXPECT_TRUE(set.covers(0, 5));
  EXPECT_TRUE(set.covers(25, 30));
  EXPECT_FALSE(set.overlaps(5, 25));
  EXPECT_TRUE(set.overlaps(4, 6));
  set.remove(0, 30);
  EXPECT_TRUE(set.empty());
}

}  // namespace
}  // namespace foresail
