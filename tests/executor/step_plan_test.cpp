#include "runtime/executor/step_plan.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace foresail {
namespace {

/// One bound block whose instructions only have what the planner looks at.
struct Step {
  Program program;
  std::vector<BoundBlock> blocks{1};

  explicit Step(int micro_batches = 1) {
    program.blocks.emplace_back();
    program.chunks.emplace_back();
    program.calls[static_cast<size_t>(Phase::forward)] = {{{.block = 0}}};
    for (int32_t i = 0; i < micro_batches; ++i) {
      program.schedule.push_back({.phase = Phase::forward, .micro_batch = i, .last = i == micro_batches - 1});
    }
  }
  BoundInstruction& add(Queue queue, InstructionKind kind = InstructionKind::op) {
    BoundInstruction& instruction = blocks[0].instructions.emplace_back();
    instruction.queue = queue;
    instruction.kind = kind;
    return instruction;
  }
  QueuePlan plan(std::vector<Dependency> waits = {}) const {
    return plan_queues(plan_calls(program), blocks, {std::move(waits)});
  }
};

constexpr auto kCompute = static_cast<size_t>(Queue::compute), kBulk = static_cast<size_t>(Queue::bulk_comm),
               kPipeline = static_cast<size_t>(Queue::pipeline);

/// "item: queue>=finished ..." of every item that waits.
std::vector<std::string> waits_of(const QueueWork& work) {
  std::vector<std::string> lines;
  for (size_t item = 0; item < work.items(); ++item) {
    std::string line = std::to_string(item) + ":";
    for (int32_t wait = work.first_wait[item]; wait < work.first_wait[item + 1]; ++wait) {
      const QueueWait& each = work.waits[static_cast<size_t>(wait)];
      line += " " + std::to_string(each.queue) + ">=" + std::to_string(each.finished);
    }
    if (line.back() != ':') lines.push_back(line);
  }
  return lines;
}

TEST(StepPlan, CallsFollowTheScheduleByChunkAndLeaveOutWhatIsOnlyForTheLast) {
  Step step(2);
  step.program.calls[static_cast<size_t>(Phase::forward)] = {
      {{.block = 0, .layer = 0}, {.block = 0, .layer = 1, .last_only = true}}, {{.block = 0, .layer = 2}}};
  step.program.schedule.push_back({.phase = Phase::forward, .chunk = 1, .micro_batch = 0});
  step.program.schedule.push_back({.phase = Phase::update});  // has no calls
  std::vector<int> layers, indices;
  for (const ExecutedCall& call : plan_calls(step.program)) {
    layers.push_back(call.call->layer);
    indices.push_back(call.call_index);
  }
  EXPECT_EQ(layers, (std::vector<int>{0, 0, 1, 2}));
  EXPECT_EQ(indices, (std::vector<int>{0, 0, 1, 0}));
}

TEST(StepPlan, QueuesKeepIssueOrderAndWaitForPositionsInOtherQueues) {
  Step step(2);
  step.add(Queue::compute);    // numbers 0 and 4
  step.add(Queue::compute);    // 1, 5
  step.add(Queue::bulk_comm);  // 2, 6
  step.add(Queue::compute);    // 3, 7
  const QueuePlan plan = step.plan({{2, 1, Queue::compute}, {6, 5, Queue::compute}, {7, 2, Queue::bulk_comm}});
  ASSERT_EQ(plan.items[kCompute].size(), 6u);
  EXPECT_EQ(plan.items[kCompute][4].call, 1);
  EXPECT_EQ(plan.items[kCompute][4].instruction, 1);
  EXPECT_EQ(waits_of(plan.work[kBulk]), (std::vector<std::string>{"0: 0>=2", "1: 0>=5"}));
  EXPECT_EQ(waits_of(plan.work[kCompute]), (std::vector<std::string>{"5: 2>=1"}));
}

TEST(StepPlan, WhatAQueueHasWaitedForItDoesNotWaitForAgain) {
  Step step;
  for (int i = 0; i < 3; ++i) step.add(Queue::compute);
  step.add(Queue::bulk_comm);
  step.add(Queue::bulk_comm);
  const QueuePlan plan =
      step.plan({{3, 0, Queue::compute}, {3, 2, Queue::compute}, {4, 1, Queue::compute}, {4, 3, Queue::bulk_comm}});
  EXPECT_EQ(waits_of(plan.work[kBulk]), (std::vector<std::string>{"0: 0>=3"}));
}

TEST(StepPlan, CollectivesOfOneGroupKeepTheirOrderAcrossQueues) {
  Step step;
  step.add(Queue::bulk_comm, InstructionKind::all_reduce).group = 5;
  step.add(Queue::compute, InstructionKind::all_gather).group = 5;
  step.add(Queue::compute, InstructionKind::all_reduce).group = 6;  // another group: free
  step.add(Queue::bulk_comm, InstructionKind::reduce_scatter).group = 5;
  const QueuePlan plan = step.plan();
  EXPECT_EQ(waits_of(plan.work[kCompute]), (std::vector<std::string>{"0: 2>=1"}));
  EXPECT_EQ(waits_of(plan.work[kBulk]), (std::vector<std::string>{"1: 0>=1"}));
}

TEST(StepPlan, MessagesOfOneChannelKeepTheirOrderAcrossQueues) {
  Step step;
  step.add(Queue::pipeline, InstructionKind::send).channel = 1;
  step.add(Queue::compute, InstructionKind::wait_send).channel = 1;
  step.add(Queue::pipeline, InstructionKind::send).channel = 2;
  step.add(Queue::pipeline, InstructionKind::send).channel = 1;
  const QueuePlan plan = step.plan();
  EXPECT_EQ(waits_of(plan.work[kCompute]), (std::vector<std::string>{"0: 3>=1"}));
  EXPECT_EQ(waits_of(plan.work[kPipeline]), (std::vector<std::string>{"2: 0>=1"}));
}

TEST(StepPlan, DependenciesOfAnotherProgramAreRefused) {
  Step step;
  step.add(Queue::compute);
  step.add(Queue::bulk_comm);
  EXPECT_THROW(step.plan({{1, 1, Queue::compute}}), Error) << "of itself";
  EXPECT_THROW(step.plan({{7, 0, Queue::compute}}), Error) << "beyond the step";
  EXPECT_THROW(step.plan({{1, 0, Queue::compute}, {0, 0, Queue::compute}}), Error) << "out of order";
}

}  // namespace
}  // namespace foresail
