// The static check refuses schedules that lose a micro-batch, share a slot or separate what belongs together; and sets of
// Programs whose stages do not fit.
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "program/check.h"
#include "tests/program/check_support.h"

namespace foresail {
namespace {

using testing::block_named;
using testing::mentions;
using testing::problems_of;
using testing::stages_of;

size_t position(const Program& program, Phase phase, int32_t chunk, int32_t micro_batch) {
  for (size_t i = 0; i < program.schedule.size(); ++i) {
    const ScheduleEntry& entry = program.schedule[i];
    if (entry.phase == phase && entry.chunk == chunk && entry.micro_batch == micro_batch) return i;
  }
  throw std::runtime_error("no such entry");
}

const char* const kPipelines[] = {"pp=2",
                                  "pp=4,schedule=gpipe",
                                  "pp=2,schedule=interleaved,virtual_stages=2",
                                  "pp=4,schedule=zb-h1",
                                  "pp=2,schedule=zb-v,virtual_stages=2",
                                  "schedule=zb-v,virtual_stages=2"};

TEST(CheckSchedule, AcceptsEverySchedule) {
  for (const char* strategy : kPipelines) {
    EXPECT_EQ(problems_of(stages_of(strategy)), std::vector<std::string>{}) << strategy;
  }
}

TEST(CheckSchedule, RefusesEveryRemovedEntry) {
  for (const char* strategy : kPipelines) {
    const auto whole = stages_of(strategy);
    for (size_t i = 0; i < whole[0].schedule.size(); ++i) {
      Program program = whole[0];
      program.schedule.erase(program.schedule.begin() + static_cast<long>(i));
      EXPECT_FALSE(check_program(program).empty()) << strategy << ", entry " << i;
    }
  }
}

TEST(CheckSchedule, RefusesAMissingMicroBatchAndATakenSlot) {
  Program program = stages_of("micro_batch=2")[0];
  program.schedule.erase(program.schedule.begin() + 1);
  EXPECT_TRUE(mentions(check_program(program), "3 of 4 micro-batches run forward"));
  Program twice = stages_of("micro_batch=2")[0];
  std::swap(twice.schedule[2], twice.schedule[3]);  // forward of the next micro-batch before backward of this one
  EXPECT_TRUE(mentions(check_program(twice), "slot 0 is taken"));
}

TEST(CheckSchedule, RefusesSlotsOfOneChunkInTheBytesOfAnother) {
  Program program = stages_of("pp=2,schedule=interleaved,virtual_stages=2")[0];
  for (ScheduleEntry& entry : program.schedule) {
    if (entry.chunk == 1) entry.slot_offset = 0;
  }
  EXPECT_TRUE(mentions(check_program(program), "is taken when"));
}

TEST(CheckSchedule, HoldsASlotUntilTheWeightGradient) {
  Program program = stages_of("pp=2,schedule=zb-h1")[1];  // one weight gradient behind
  ASSERT_EQ(program.chunks[0].slots, 2);
  program.schedule[position(program, Phase::forward, 0, 1)].delayed_offset =
      program.schedule[position(program, Phase::forward, 0, 0)].delayed_offset;
  EXPECT_TRUE(mentions(check_program(program), "is taken when micro-batch 1 enters it"));
}

TEST(CheckSchedule, RefusesAWeightGradientBeforeItsBackward) {
  Program program = stages_of("schedule=zb-h1")[0];
  std::swap(program.schedule[position(program, Phase::backward, 0, 0)],
            program.schedule[position(program, Phase::weight_gradient, 0, 0)]);
  EXPECT_TRUE(mentions(check_program(program), "weight_gradient before backward"));
}

TEST(CheckSchedule, RefusesWhatComesBetweenNeighbours) {
  // At the turn of the V the hidden states of micro-batch 0 would be overwritten by those of micro-batch 1.
  Program turn = stages_of("pp=2,schedule=zb-v,virtual_stages=2")[1];
  std::swap(turn.schedule[position(turn, Phase::forward, 1, 0)], turn.schedule[position(turn, Phase::forward, 0, 1)]);
  EXPECT_TRUE(mentions(check_program(turn), "is not followed by"));
  EXPECT_FALSE(mentions(check_program(stages_of("pp=2")[1]), "is not followed by"));
}

TEST(CheckSchedule, RefusesAWrongMarkOfTheLastExecution) {
  Program program = stages_of("micro_batch=2")[0];
  program.schedule[position(program, Phase::backward, 0, 3)].last = false;
  EXPECT_TRUE(mentions(check_program(program), "the last of backward"));
  program = stages_of("micro_batch=2")[0];
  program.schedule[position(program, Phase::backward, 0, 1)].last = true;
  EXPECT_TRUE(mentions(check_program(program), "the last of backward"));
}

TEST(CheckSchedule, RefusesPhasesOutOfOrder) {
  Program program = stages_of("dp=2")[0];
  std::swap(program.schedule.back(), program.schedule[program.schedule.size() - 2]);
  EXPECT_TRUE(mentions(check_program(program), "grad_norm comes after update"));
  program = stages_of("dp=2")[0];
  program.schedule.pop_back();
  EXPECT_TRUE(mentions(check_program(program), "update never runs"));
}

TEST(CheckPipeline, FindsAMessageThatNobodyReceives) {
  auto stages = stages_of("pp=2,micro_batch=2");
  block_named(stages[1], "receive_hidden").instructions.clear();
  EXPECT_TRUE(mentions(check_pipeline(stages), "waits forever"));  // to get its buffer back
  for (Block& block : stages[0].blocks) {
    std::erase_if(block.instructions, [](const Instruction& i) { return i.kind == InstructionKind::wait_send; });
  }
  EXPECT_TRUE(mentions(check_pipeline(stages), "never received"));
}

TEST(CheckPipeline, FindsADeadlock) {
  auto stages = stages_of("pp=2,micro_batch=2");
  for (ScheduleEntry& entry : stages[0].schedule) {  // stage 0 wants a gradient before it sent anything
    if (entry.phase == Phase::forward) {
      std::swap(entry, stages[0].schedule[3]);
      break;
    }
  }
  EXPECT_TRUE(mentions(check_pipeline(stages), "deadlock"));
}

TEST(CheckPipeline, FindsSizesThatDiffer) {
  auto stages = stages_of("pp=2,micro_batch=2");
  block_named(stages[1], "receive_hidden").buffers[0].type.shape[0] /= 2;
  EXPECT_TRUE(mentions(check_pipeline(stages), "bytes"));
}

TEST(CheckPipeline, FindsMicroBatchesInAnotherOrder) {
  auto stages = stages_of("pp=2,schedule=interleaved,virtual_stages=2");
  std::swap(stages[1].schedule[position(stages[1], Phase::forward, 0, 0)],
            stages[1].schedule[position(stages[1], Phase::forward, 0, 1)]);
  EXPECT_TRUE(mentions(check_pipeline(stages), "receives message"));
}

TEST(CheckPipeline, RefusesAMessageToOneselfAndAForeignChannel) {
  auto stages = stages_of("pp=2,schedule=zb-v,virtual_stages=2");
  Instruction& send = block_named(stages[0], "send_hidden").instructions[0];
  send.peer_stage = 0;
  EXPECT_TRUE(mentions(check_program(stages[0]), "sends to itself"));
  EXPECT_TRUE(mentions(check_pipeline(stages), "is itself or does not exist"));
  send.peer_stage = 1;
  send.channel += 2;
  EXPECT_TRUE(mentions(check_program(stages[0]), "is not that of virtual stage 0"));
}

TEST(CheckPipeline, RefusesStagesOfDifferentPipelines) {
  auto stages = stages_of("pp=4");
  std::swap(stages[1], stages[2]);
  EXPECT_TRUE(mentions(check_pipeline(stages), "is not stage 1 of the same pipeline"));
  stages = stages_of("pp=4");
  stages[1] = stages_of("pp=4,stage_layers=1+1+1+1,micro_batch=2")[1];
  EXPECT_FALSE(check_pipeline(stages).empty());
  stages = stages_of("pp=2,schedule=zb-v,virtual_stages=2");
  stages[0].chunks[1].virtual_stage = 2;
  EXPECT_TRUE(mentions(check_pipeline(stages), "virtual stage 2 exists twice"));
  stages = stages_of("pp=2");
  stages[1].chunks[0].first_layer = 3;
  EXPECT_TRUE(mentions(check_pipeline(stages), "begins with layer 3 instead of 2"));
}

TEST(CheckPipeline, FindsACollectiveThatAStageDoesNotJoin) {
  auto stages = stages_of("pp=2");
  auto& metrics = block_named(stages[1], "finish_metrics").instructions;
  std::erase_if(metrics, [](const Instruction& i) { return i.kind == InstructionKind::all_reduce; });
  EXPECT_TRUE(mentions(check_pipeline(stages), "deadlock"));
}

}  // namespace
}  // namespace foresail
