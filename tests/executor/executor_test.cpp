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
  tiny.program.mesh = Mesh{.pp = 1, .dp = 3, .tp = 2};
  RecordingDevice device;
  RecordingCommunicator communicator(5, 6);  // dp 2, tp 1
  communicator.create_groups(mesh_groups(tiny.program.mesh).members);
  Arena arena(tiny.program.arena.bytes);
  Executor executor(tiny.program, device, &communicator, arena, 5);
  executor.step();
  const KernelContext& second = device.runs[6].context;  // embedding of micro-batch 1
  EXPECT_EQ(second.first_row, (2 * 2 + 1) * 4);
  EXPECT_EQ(second.data_rank, 2);
  EXPECT_EQ(second.tensor_rank, 1);
  EXPECT_EQ(second.tensor_size, 2);
  EXPECT_EQ(second.step, &executor.step_inputs());
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
  tiny.program.mesh = Mesh{.pp = 2, .dp = 2, .tp = 2};
  return tiny;
}

Instruction communication(InstructionKind kind, std::vector<int32_t> inputs, std::vector<int32_t> outputs) {
  Instruction instruction;
  instruction.kind = kind;
  instruction.inputs = std::move(inputs);
  instruction.outputs = std::move(outputs);
  return instruction;
}

TEST(Executor, CollectivesGoToTheRanksOwnGroup) {
  Instruction reduce = communication(InstructionKind::all_reduce, {4}, {4});
  reduce.group = GroupKind::data;
  const TinyProgram tiny = with_communication({reduce});
  const int rank = 6;  // pp 1, dp 1, tp 0
  RecordingCommunicator communicator(rank, 8);
  const MeshGroups groups = mesh_groups(tiny.program.mesh);
  communicator.create_groups(groups.members);
  RecordingDevice device;
  Arena arena(tiny.program.arena.bytes);
  Executor executor(tiny.program, device, &communicator, arena, rank);
  executor.step();
  const std::string expected = "all_reduce group=" + std::to_string(groups.index(GroupKind::data, rank)) + " count=15";
  EXPECT_EQ(communicator.calls, (std::vector<std::string>{expected, expected}));
  EXPECT_EQ(groups.members[static_cast<size_t>(groups.index(GroupKind::data, rank))], (std::vector<int>{4, 6}));
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
  const auto tag = [](int32_t channel, int32_t micro_batch) {
    return std::to_string(message_tag(channel, micro_batch));
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
