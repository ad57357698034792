#include "runtime/executor/executor.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/error.h"
#include "tests/executor/allocation_counter.h"
#include "tests/executor/fakes.h"
#include "tests/executor/tiny_program.h"

namespace foresail {
namespace {

using testing::RecordingCommunicator;
using testing::RecordingDevice;
using testing::tiny_program;
using testing::TinyProgram;

std::vector<OpKind> kinds(const RecordingDevice& device) {
  std::vector<OpKind> result;
  for (const auto& run : device.runs) result.push_back(run.kind);
  return result;
}

TEST(Executor, RunsTheScheduleInOrderOnTheAddressesOfTheLayout) {
  const TinyProgram tiny = tiny_program(DType::f64);
  RecordingDevice device;
  Arena arena(tiny.program.arena.bytes);
  Executor executor(tiny.program, device, nullptr, arena, 0);
  executor.step();
  const std::vector<OpKind> micro_batch{OpKind::embedding, OpKind::linear, OpKind::cross_entropy,
                                        OpKind::linear_backward_weight};
  std::vector<OpKind> expected{OpKind::fill_zero, OpKind::fill_zero};
  for (int i = 0; i < 2; ++i) expected.insert(expected.end(), micro_batch.begin(), micro_batch.end());
  expected.insert(expected.end(), {OpKind::squared_norm, OpKind::clip_scale, OpKind::adamw});
  EXPECT_EQ(kinds(device), expected);
  EXPECT_EQ(device.runs[3].inputs[1], arena.data() + tiny.layout.weight);
  EXPECT_EQ(device.runs[3].outputs[0], arena.data() + tiny.layout.logits);
  const int64_t second = tiny.program.arena.data.offset + tiny.program.data_stride_bytes;
  EXPECT_EQ(device.runs[6].inputs[0], arena.data() + second) << "tokens of micro-batch 1";
}

TEST(Executor, BindsEveryInstructionOnce) {
  const TinyProgram tiny = tiny_program(DType::f64);
  RecordingDevice device;
  Arena arena(tiny.program.arena.bytes);
  Executor executor(tiny.program, device, nullptr, arena, 0);
  executor.step();
  executor.step();
  EXPECT_EQ(device.binds, 9);
}

TEST(Executor, TheWalkItselfAllocatesNothingAfterTheFirstStep) {
  const TinyProgram tiny = tiny_program(DType::f64);
  RecordingDevice device;
  device.record = false;
  Arena arena(tiny.program.arena.bytes);
  Executor executor(tiny.program, device, nullptr, arena, 0);
  executor.enable_trace();
  executor.step();
  const int64_t before = testing::allocations();
  executor.step();
  executor.step();
  EXPECT_EQ(testing::allocations(), before);
  device.record = true;  // these kernels do allocate: the counter sees it
  executor.step();
  EXPECT_GT(testing::allocations(), before);
}

TEST(Executor, KernelsLearnWhichRowsOfTheGlobalBatchTheyHold) {
  TinyProgram tiny = tiny_program(DType::f64);
  tiny.program.mesh = Mesh{.pp = 1, .dp = 3, .cp = 2, .tp = 2, .shard = 3, .kv_copies = 2};
  tiny.program.sequence_length = 8;  // of which this rank holds 4 rows
  RecordingDevice device;
  RecordingCommunicator communicator(9, 12);  // dp 2, cp 0, tp 1
  communicator.create_groups(mesh_groups(tiny.program.mesh).members);
  Arena arena(tiny.program.arena.bytes);
  Executor executor(tiny.program, device, &communicator, arena, 9);
  executor.step();
  const KernelContext& second = device.runs[6].context;  // embedding of micro-batch 1
  EXPECT_EQ(second.first_row, (2 * 2 + 1) * 8) << "whole sequences";
  EXPECT_EQ(second.context_rank, 0);
  EXPECT_EQ(second.context_size, 2);
  EXPECT_EQ(second.replica_rank, 4 / 3);
  EXPECT_EQ(second.tensor_rank, 1);
  EXPECT_EQ(second.tensor_size, 2);
  EXPECT_EQ(second.kv_copies, 2);
  EXPECT_EQ(second.step, &executor.step_inputs());
}

TEST(Executor, ContextRanksOfOneDataRankHoldTheSameSequences) {
  TinyProgram tiny = tiny_program(DType::f64);
  tiny.program.mesh = Mesh{.pp = 1, .dp = 2, .cp = 2, .tp = 1};
  tiny.program.sequence_length = 2;  // 4 rows of this rank are halves of 4 sequences
  std::vector<int64_t> first_rows, context_ranks;
  for (int rank = 0; rank < 4; ++rank) {
    RecordingDevice device;
    RecordingCommunicator communicator(rank, 4);
    communicator.create_groups(mesh_groups(tiny.program.mesh).members);
    Arena arena(tiny.program.arena.bytes);
    Executor executor(tiny.program, device, &communicator, arena, rank);
    executor.step();
    first_rows.push_back(device.runs[6].context.first_row);  // micro-batch 1
    context_ranks.push_back(device.runs[6].context.context_rank);
  }
  EXPECT_EQ(first_rows, (std::vector<int64_t>{1 * 4 * 2, 1 * 4 * 2, 3 * 4 * 2, 3 * 4 * 2}));
  EXPECT_EQ(context_ranks, (std::vector<int64_t>{0, 1, 0, 1}));
}

TEST(Executor, RefusesAKernelThatWantsMoreWorkspaceThanWasLaidOut) {
  const TinyProgram tiny = tiny_program(DType::f64);
  RecordingDevice device;
  device.workspace[OpKind::linear] = 4096;
  Arena arena(tiny.program.arena.bytes);
  try {
    Executor executor(tiny.program, device, nullptr, arena, 0);
    FAIL() << "bound without workspace";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    EXPECT_NE(std::string(error.what()).find("4096"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("linear"), std::string::npos);
  }
}

TEST(Executor, RefusesAnArenaThatIsTooSmall) {
  const TinyProgram tiny = tiny_program(DType::f64);
  RecordingDevice device;
  Arena arena(tiny.program.arena.bytes - 1);
  EXPECT_THROW(Executor(tiny.program, device, nullptr, arena, 0), Error);
}

TEST(Executor, TokensAndTargetsAreTheMicroBatchsOwn) {
  const TinyProgram tiny = tiny_program(DType::f64);
  RecordingDevice device;
  Arena arena(tiny.program.arena.bytes);
  Executor executor(tiny.program, device, nullptr, arena, 0);
  ASSERT_EQ(executor.tokens(1).size(), 4u);
  EXPECT_EQ(reinterpret_cast<std::byte*>(executor.tokens(1).data()),
            arena.data() + tiny.program.arena.data.offset + tiny.program.data_stride_bytes);
  EXPECT_EQ(executor.targets(0).data(), executor.tokens(0).data() + 4);
  EXPECT_THROW(executor.tokens(2), Error);
}

/// The tiny Program's forward block with communication appended.
TinyProgram with_communication(const std::vector<Instruction>& extra) {
  TinyProgram tiny = tiny_program(DType::f64);
  Block& block = tiny.program.blocks[1];
  for (const Instruction& instruction : extra) block.instructions.push_back(instruction);
  tiny.program.mesh = Mesh{.pp = 2, .dp = 2, .cp = 1, .tp = 2};
  return tiny;
}

Instruction communication(InstructionKind kind, std::vector<int32_t> inputs, std::vector<int32_t> outputs) {
  Instruction instruction;
  instruction.kind = kind;
  instruction.inputs = std::move(inputs);
  instruction.outputs = std::move(outputs);
  return instruction;
}

Instruction copy_of(int32_t input, int32_t output) {
  Instruction instruction = communication(InstructionKind::op, {input}, {output});
  instruction.op = OpKind::copy;
  return instruction;
}

TEST(Executor, CollectivesGoToTheRanksOwnGroup) {
  Instruction reduce = communication(InstructionKind::all_reduce, {4}, {4});
  reduce.group = GroupKind::replica;
  const TinyProgram tiny = with_communication({reduce});
  const int rank = 6;  // pp 1, dp 1, tp 0
  RecordingCommunicator communicator(rank, 8);
  const MeshGroups groups = mesh_groups(tiny.program.mesh);
  communicator.create_groups(groups.members);
  RecordingDevice device;
  Arena arena(tiny.program.arena.bytes);
  Executor executor(tiny.program, device, &communicator, arena, rank);
  executor.step();
  const std::string expected =
      "all_reduce group=" + std::to_string(groups.index(GroupKind::replica, rank)) + " count=15";
  EXPECT_EQ(communicator.calls, (std::vector<std::string>{expected, expected}));
  EXPECT_EQ(groups.members[static_cast<size_t>(groups.index(GroupKind::replica, rank))], (std::vector<int>{4, 6}));
}

/// Buffers [n] and [2n] at the end of the tiny arena; index of the first.
int32_t add_part_and_whole(TinyProgram& tiny, int64_t stride) {
  Block& block = tiny.program.blocks[1];
  const int64_t at = tiny.program.arena.bytes;
  tiny.program.arena.bytes += 256;
  block.buffers.push_back({"part", Register::absolute, at, {DType::f64, {8}}, MemoryKind::scratch, stride});
  block.buffers.push_back({"whole", Register::absolute, at, {DType::f64, {16}}, MemoryKind::scratch, 0});
  block.buffers.push_back({"other", Register::absolute, at + 128, {DType::f64, {16}}, MemoryKind::scratch, 0});
  return static_cast<int32_t>(block.buffers.size()) - 3;
}

TEST(Executor, CollectivesCountTheElementsOfOnePartAndShardsLieAtTheirStride) {
  TinyProgram tiny = with_communication({});
  tiny.program.mesh = Mesh{.pp = 1, .dp = 2, .cp = 1, .tp = 1, .shard = 2};
  const int32_t part = add_part_and_whole(tiny, 64), whole = part + 1, other = part + 2;
  auto& instructions = tiny.program.blocks[1].instructions;
  for (const auto& [kind, input, output] : {std::tuple{InstructionKind::all_gather, part, whole},
                                            {InstructionKind::reduce_scatter, whole, part},
                                            {InstructionKind::all_to_all, whole, other},
                                            {InstructionKind::ring_shift, whole, other}}) {
    instructions.push_back(communication(kind, {input}, {output}));
    instructions.back().group = GroupKind::shard;
  }
  instructions.push_back(copy_of(part, part));
  tiny.program.micro_batches = 1;
  tiny.program.schedule = {{.phase = Phase::forward, .micro_batch = 0}};
  for (const int rank : {0, 1}) {
    RecordingCommunicator communicator(rank, 2);
    communicator.create_groups(mesh_groups(tiny.program.mesh).members);
    RecordingDevice device;
    Arena arena(tiny.program.arena.bytes);
    Executor executor(tiny.program, device, &communicator, arena, rank);
    executor.step();
    const std::string group =
        "group=" + std::to_string(mesh_groups(tiny.program.mesh).index(GroupKind::shard, rank)) + " ";
    EXPECT_EQ(communicator.calls,
              (std::vector<std::string>{"all_gather " + group + "count=8", "reduce_scatter " + group + "count=8",
                                        "all_to_all " + group + "count=8", "ring_shift " + group + "bytes=128"}));
    std::byte* const shard = arena.data() + tiny.program.arena.bytes - 256 + rank * 64;
    EXPECT_EQ(device.runs.back().inputs[0], shard);
    EXPECT_EQ(communicator.addresses[0], shard) << "gathered from";
    EXPECT_EQ(communicator.addresses[1], shard) << "reduced into";
  }
}

TEST(Executor, CollectivesWhoseOperandsDoNotFitTheirGroupAreRefused) {
  for (const auto& [kind, input, output] : {std::tuple{InstructionKind::all_gather, 1, 1},
                                            {InstructionKind::reduce_scatter, 0, 0},
                                            {InstructionKind::ring_shift, 0, 1},
                                            {InstructionKind::all_to_all, 1, 0}}) {
    TinyProgram tiny = with_communication({});
    tiny.program.mesh = Mesh{.pp = 1, .dp = 2, .cp = 1, .tp = 1, .shard = 2};
    const int32_t part = add_part_and_whole(tiny, 64);
    Instruction wrong = communication(kind, {part + input}, {part + output});
    wrong.group = GroupKind::shard;
    tiny.program.blocks[1].instructions.push_back(wrong);
    RecordingCommunicator communicator(0, 2);
    communicator.create_groups(mesh_groups(tiny.program.mesh).members);
    RecordingDevice device;
    Arena arena(tiny.program.arena.bytes);
    EXPECT_THROW(Executor(tiny.program, device, &communicator, arena, 0), Error);
  }
}

TEST(Executor, ChunksHaveCallsAndSlotsOfTheirOwnAndSomeCallsRunOnlyLast) {
  TinyProgram tiny = tiny_program(DType::f64);
  Program& program = tiny.program;
  Block block{.name = "chunk", .buffers = {}, .instructions = {}};
  block.buffers.push_back({"x", Register::saved, 0, {DType::f64, {1}}, MemoryKind::activations});
  block.buffers.push_back({"c", Register::carried, 0, {DType::f64, {1}}, MemoryKind::activations});
  block.instructions.push_back(copy_of(0, 1));
  program.blocks = {block};
  program.chunks = {{.slot_bytes = 64, .slots = 2}, {.slot_bytes = 64, .slots = 1, .carried_bytes = 8}};
  program.arena.slots = {64, 256};
  auto& calls = program.calls[static_cast<size_t>(Phase::forward)];
  calls = {{{.block = 0, .layer = 0}}, {{.block = 0, .layer = 7}, {.block = 0, .layer = 8, .last_only = true}}};
  program.schedule = {
      {.phase = Phase::forward, .chunk = 0, .micro_batch = 0, .slot_offset = 64},
      {.phase = Phase::forward, .chunk = 1, .micro_batch = 0, .slot_offset = 128, .carried_offset = 200},
      {.phase = Phase::forward, .chunk = 1, .micro_batch = 1, .last = true, .slot_offset = 128}};
  RecordingDevice device;
  Arena arena(program.arena.bytes);
  Executor executor(program, device, nullptr, arena, 0);
  executor.enable_trace();
  executor.step();
  ASSERT_EQ(device.runs.size(), 4u);
  const auto at = [&](size_t run) { return static_cast<std::byte*>(device.runs[run].inputs[0]) - arena.data(); };
  EXPECT_EQ(at(0), 64 + 64);
  EXPECT_EQ(at(1), 192);
  EXPECT_EQ(device.runs[1].outputs[0], arena.data() + 64 + 200);
  EXPECT_EQ(device.runs[1].context.layer, 7);
  EXPECT_EQ(device.runs[3].context.layer, 8);
  EXPECT_EQ(executor.trace()[3].chunk, 1);
  EXPECT_EQ(executor.trace()[3].call, 1);
}

TEST(Executor, MessagesGoToTheSamePlaceOfThePeerStageAndSendsAreWaitedForByChannel) {
  Instruction receive = communication(InstructionKind::receive, {}, {5});
  Instruction send = communication(InstructionKind::send, {5}, {});
  send.channel = 1;
  Instruction wait = communication(InstructionKind::wait_send, {}, {});
  wait.channel = 1;
  const TinyProgram tiny = with_communication({receive, send, wait});
  const int rank = 5;  // pp 1, dp 0, tp 1; peer stage 0: rank 1
  RecordingCommunicator communicator(rank, 8);
  communicator.create_groups(mesh_groups(tiny.program.mesh).members);
  RecordingDevice device;
  Arena arena(tiny.program.arena.bytes);
  Executor executor(tiny.program, device, &communicator, arena, rank);
  executor.step();
  const auto tag = [&](int32_t channel, int32_t micro_batch) {
    return std::to_string(message_tag(tiny.program, channel, micro_batch));
  };
  EXPECT_EQ(communicator.calls,
            (std::vector<std::string>{"receive peer=1 tag=" + tag(0, 0), "wait 0", "send peer=1 tag=" + tag(1, 0),
                                      "wait 1", "receive peer=1 tag=" + tag(0, 1), "wait 2",
                                      "send peer=1 tag=" + tag(1, 1), "wait 3"}));
}

TEST(Executor, TheTraceHasOneEventPerExecutedInstructionInOrder) {
  const TinyProgram tiny = tiny_program(DType::f64);
  RecordingDevice device;
  Arena arena(tiny.program.arena.bytes);
  Executor executor(tiny.program, device, nullptr, arena, 0);
  EXPECT_TRUE(executor.trace().empty());
  executor.enable_trace();
  executor.step();
  executor.step();
  const auto& trace = executor.trace();
  ASSERT_EQ(trace.size(), 13u);
  for (size_t i = 1; i < trace.size(); ++i) EXPECT_GE(trace[i].begin_seconds, trace[i - 1].end_seconds);
  EXPECT_EQ(trace[2].micro_batch, 0);
  EXPECT_EQ(trace[6].micro_batch, 1);
  EXPECT_EQ(trace[12].phase, Phase::update);
}

}  // namespace
}  // namespace foresail
