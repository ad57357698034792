#include "planner/simulator/simulator.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "tests/planner/hand_made.h"

namespace foresail {
namespace {

using test::BlockBuilder;
using test::mesh_of;
using test::pipeline;
using test::PlainCosts;
using test::sequence;
using test::Value;

double sum_of(const TimePrediction& t) {
  return t.compute + t.recompute + t.tensor_comm + t.context_comm + t.expert_comm + t.data_comm + t.pipeline_comm +
         t.bubble + t.optimizer + t.data_wait;
}

TEST(Simulator, OneFOneBIdlesForStagesMinusOneSlots) {
  // Narayanan et al. 2021, section 2.2: bubble time is (p - 1) (t_f + t_b) however many micro-batches follow.
  for (const int stages : {1, 2, 4, 7}) {
    for (const int micro_batches : {1, 3, 8, 64}) {
      const Simulation result = simulate(pipeline(stages, micro_batches, 2, 5), PlainCosts{}, {});
      EXPECT_DOUBLE_EQ(result.step_seconds, (micro_batches + stages - 1) * 7.0) << stages << " " << micro_batches;
      EXPECT_DOUBLE_EQ(result.time.bubble, (stages - 1) * 7.0);
      EXPECT_DOUBLE_EQ(result.time.compute, micro_batches * 7.0);
      ASSERT_EQ(result.stage_seconds.size(), static_cast<size_t>(stages));
    }
  }
}

TEST(Simulator, TimeByKindSumsToTheStepExactly) {
  PlainCosts costs;
  costs.message = 0.3, costs.issue = 0.01;
  for (const int stages : {2, 3, 5}) {
    const Simulation result = simulate(pipeline(stages, 9, 3, 4), costs, {});
    EXPECT_EQ(sum_of(result.time), result.step_seconds);
    EXPECT_GT(result.time.pipeline_comm, 0);
  }
}

TEST(Simulator, MessagesOnTheCriticalPathLengthenTheStep) {
  PlainCosts costs;
  const double without = simulate(pipeline(3, 4, 2, 4), costs, {}).step_seconds;
  costs.message = 0.5;
  const double with = simulate(pipeline(3, 4, 2, 4), costs, {}).step_seconds;
  EXPECT_GE(with, without + 4 * 0.5);  // down and up twice at least, before the first backward of stage 0 can run
}

TEST(Simulator, TheSlowestStageSetsThePace) {
  auto stages = pipeline(3, 50, 2, 4);
  for (Block& block : stages[1].blocks) {
    for (Buffer& buffer : block.buffers) {
      if (buffer.type.shape[0] > 1) buffer.type.shape[0] *= 2;
    }
  }
  const Simulation result = simulate(stages, PlainCosts{}, {});
  EXPECT_GE(result.step_seconds, 50 * 12.0);
  EXPECT_LE(result.step_seconds, 50 * 12.0 + 2 * 12.0);
  EXPECT_DOUBLE_EQ(result.stage_seconds[1], 600);
}

TEST(Simulator, SlowerCostsNeverShortenTheStep) {
  double previous = 0;
  for (const double factor : {0.5, 1.0, 1.7, 3.0}) {
    PlainCosts costs;
    costs.message = 0.4;
    costs.factor = factor;
    const double step = simulate(pipeline(4, 6, 2, 3), costs, {}).step_seconds;
    EXPECT_GT(step, previous);
    previous = step;
  }
}

TEST(Simulator, RecordingEveryInstructionDoesNotChangeTheTime) {
  PlainCosts costs;
  costs.message = 0.25;
  const auto stages = pipeline(3, 5, 2, 3);
  const Simulation merged = simulate(stages, costs, {});
  const Simulation recorded = simulate(stages, costs, {.record_events = true, .devices_per_node = 1});
  EXPECT_DOUBLE_EQ(merged.step_seconds, recorded.step_seconds);
  EXPECT_EQ(merged.instructions, recorded.instructions);
  EXPECT_EQ(recorded.events.size(), static_cast<size_t>(recorded.instructions));
  for (const SimulatedEvent& event : recorded.events) {
    EXPECT_LE(event.begin_seconds, event.end_seconds);
    EXPECT_LE(event.end_seconds, recorded.step_seconds * (1 + 1e-12));
  }
}

TEST(Simulator, OpsOfOneQueueAndKindPlayAsOneWithTheSameTime) {
  BlockBuilder builder;
  for (int i = 0; i < 10; ++i) builder.op(3);
  builder.op(4, TimeKind::recompute);
  const std::vector<Program> stages = {sequence({{Phase::forward, builder.finish("block")}})};
  const Simulation result = simulate(stages, PlainCosts{}, {});
  EXPECT_DOUBLE_EQ(result.time.compute, 30);
  EXPECT_DOUBLE_EQ(result.time.recompute, 4);
  EXPECT_EQ(result.instructions, 11);
}

TEST(Simulator, ACollectiveBesideComputeCostsOnlyItsExposedPart) {
  PlainCosts costs;
  costs.collective = 5;
  BlockBuilder builder;
  const Value partial = builder.op(2);
  builder.collective(GroupKind::tensor, Queue::inline_comm, TimeKind::tensor_comm, partial);
  builder.op(3);  // independent: hides 3 of 5 seconds
  builder.op(1, TimeKind::compute, {partial});
  const std::vector<Program> stages = {sequence({{Phase::forward, builder.finish("block")}}, mesh_of(1, 1, 2))};
  const Simulation result = simulate(stages, costs, {});
  EXPECT_DOUBLE_EQ(result.step_seconds, 8);
  EXPECT_DOUBLE_EQ(result.time.compute, 6);
  EXPECT_DOUBLE_EQ(result.time.tensor_comm, 2);
  EXPECT_DOUBLE_EQ(result.time.bubble, 0);
}

TEST(Simulator, LaterBlocksWaitForWhatTheyReadAndForNothingElse) {
  PlainCosts costs;
  costs.collective = 5;
  for (const bool reads : {false, true}) {
    BlockBuilder first, second;
    const Value partial = first.op(2);
    first.collective(GroupKind::tensor, Queue::inline_comm, TimeKind::tensor_comm, partial);
    second.op(3, TimeKind::compute, reads ? std::vector<Value>{partial} : std::vector<Value>{});
    const std::vector<Program> stages = {
        sequence({{Phase::forward, first.finish("a")}, {Phase::forward, second.finish("b")}}, mesh_of(1, 1, 2))};
    EXPECT_DOUBLE_EQ(simulate(stages, costs, {}).step_seconds, reads ? 10 : 7);
  }
}

TEST(Simulator, BucketsOfGradientsHideBehindTheBackwardOfEarlierLayers) {
  PlainCosts costs;
  costs.collective = 5;
  BlockBuilder third, second, first, norm;
  const Value g3 = third.op(2);
  third.collective(GroupKind::replica, Queue::bulk_comm, TimeKind::data_comm, g3);
  const Value g2 = second.op(4);
  second.collective(GroupKind::replica, Queue::bulk_comm, TimeKind::data_comm, g2);
  const Value g1 = first.op(9);
  first.collective(GroupKind::replica, Queue::bulk_comm, TimeKind::data_comm, g1);
  norm.op(1, TimeKind::optimizer, {g1, g2, g3});
  const std::vector<Program> stages = {sequence({{Phase::backward, third.finish("3")},
                                                 {Phase::backward, second.finish("2")},
                                                 {Phase::backward, first.finish("1")},
                                                 {Phase::grad_norm, norm.finish("norm")}},
                                                mesh_of(1, 2, 1))};
  const Simulation result = simulate(stages, costs, {});
  // Backward ends at 15. Buckets: 2 to 7, 7 to 12, and the last, exposed, 15 to 20.
  EXPECT_DOUBLE_EQ(result.step_seconds, 21);
  EXPECT_DOUBLE_EQ(result.time.compute, 15);
  EXPECT_DOUBLE_EQ(result.time.data_comm, 5);
  EXPECT_DOUBLE_EQ(result.time.optimizer, 1);
}

TEST(Simulator, AnOverwriteWaitsForTheCollectiveThatStillReads) {
  PlainCosts costs;
  costs.collective = 5;
  // The same block for two micro-batches: the second may not overwrite what the first still reduces.
  BlockBuilder block;
  const Value gradient = block.op(2);
  block.collective(GroupKind::replica, Queue::bulk_comm, TimeKind::data_comm, gradient);
  block.op(1);
  Program program = sequence({{Phase::backward, block.finish("block")}}, mesh_of(1, 2, 1));
  program.schedule = {{Phase::backward, 0, 0, 0}, {Phase::backward, 0, 1, 0}};
  const Simulation result = simulate(std::vector<Program>{program}, costs, {});
  // 0-2 op, 2-7 reduce, 2-3 op; 7-9 op, 9-14 reduce, 9-10 op.
  EXPECT_DOUBLE_EQ(result.step_seconds, 14);
}

TEST(Simulator, ACollectiveThatOutlastsComputeIsExposedAtTheEnd) {
  PlainCosts costs;
  costs.collective = 5;
  BlockBuilder backward;
  const Value gradient = backward.op(2);
  backward.collective(GroupKind::replica, Queue::bulk_comm, TimeKind::data_comm, gradient);
  const std::vector<Program> stages = {sequence({{Phase::backward, backward.finish("a")}}, mesh_of(1, 2, 1))};
  const Simulation result = simulate(stages, costs, {});
  EXPECT_DOUBLE_EQ(result.step_seconds, 7);
  EXPECT_DOUBLE_EQ(result.time.data_comm, 5);
}

TEST(Simulator, ARingStepBehindItsAttentionIsContextCommunication) {
  PlainCosts costs;
  costs.collective = 5;
  BlockBuilder block;
  const Value keys = block.op(1);
  const Value shifted = block.collective(GroupKind::context, Queue::inline_comm, TimeKind::context_comm, keys);
  block.op(4);  // attends to the rank's own keys meanwhile
  block.op(4, TimeKind::compute, {shifted});
  Mesh mesh;
  mesh.cp = 2;
  const Simulation result =
      simulate(std::vector<Program>{sequence({{Phase::forward, block.finish("ring")}}, mesh)}, costs, {});
  EXPECT_DOUBLE_EQ(result.step_seconds, 10);
  EXPECT_DOUBLE_EQ(result.time.context_comm, 1);
}

TEST(Simulator, CallsForTheLastMicroBatchAreSkippedBefore) {
  BlockBuilder always, at_last;
  always.op(2);
  at_last.op(10, TimeKind::data_comm);
  Program program =
      sequence({{Phase::backward, always.finish("always")}, {Phase::backward, at_last.finish("at last")}});
  program.calls[static_cast<size_t>(Phase::backward)][0][1].last_only = true;
  program.schedule = {{Phase::backward, 0, 0, 0, 0, false}, {Phase::backward, 0, 1, 0, 0, true}};
  const Simulation result = simulate(std::vector<Program>{program}, PlainCosts{}, {});
  EXPECT_DOUBLE_EQ(result.time.compute, 4);
  EXPECT_DOUBLE_EQ(result.time.data_comm, 10);
}

TEST(Simulator, AReceiveBesideComputeHidesItsTransfer) {
  PlainCosts costs;
  costs.message = 3;
  BlockBuilder sender, early, late;
  sender.send(1, 0, Queue::pipeline, sender.op(1));
  const Value message = early.receive(0, 0, Queue::pipeline);
  early.op(5);
  late.op(2, TimeKind::compute, {message});
  std::vector<Program> stages = {
      sequence({{Phase::forward, sender.finish("s")}}, mesh_of(2, 1, 1)),
      sequence({{Phase::forward, early.finish("early")}, {Phase::forward, late.finish("late")}}, mesh_of(2, 1, 1))};
  stages[1].stage = 1;
  const Simulation result = simulate(stages, costs, {});
  EXPECT_DOUBLE_EQ(result.step_seconds, 7);
  EXPECT_DOUBLE_EQ(result.time.pipeline_comm + result.time.bubble, 0);
}

TEST(Simulator, ASentBufferIsOverwrittenOnlyAfterItsWaitSend) {
  PlainCosts costs;
  costs.message = 3;
  BlockBuilder sender, receiver;
  const Value hidden = sender.op(1);
  sender.send(1, 0, Queue::pipeline, hidden);
  sender.wait_send(0, Queue::pipeline);
  sender.collective(GroupKind::tensor, Queue::compute, TimeKind::tensor_comm, hidden);  // free of charge: one rank
  sender.op(1);
  receiver.op(4);
  receiver.receive(0, 0);
  std::vector<Program> stages = {sequence({{Phase::forward, sender.finish("s")}}, mesh_of(2, 1, 1)),
                                 sequence({{Phase::forward, receiver.finish("r")}}, mesh_of(2, 1, 1))};
  stages[1].stage = 1;
  EXPECT_DOUBLE_EQ(simulate(stages, costs, {}).step_seconds, 8);  // sent 1, received 4 to 7, then one more
}

TEST(Simulator, ACollectiveOfTheWholeWorldStartsWithTheLastStage) {
  PlainCosts costs;
  costs.collective = 1;
  std::vector<Program> stages;
  for (const int64_t work : {2, 6, 3}) {
    BlockBuilder builder;
    builder.op(work);
    builder.collective(GroupKind::world, Queue::compute, TimeKind::data_comm);
    Program program = sequence({{Phase::grad_norm, builder.finish("norm")}}, mesh_of(3, 1, 1));
    program.stage = static_cast<int32_t>(stages.size());
    stages.push_back(std::move(program));
  }
  BlockBuilder tail;
  tail.op(4);
  Call update;
  update.block = 1;
  stages[0].calls[static_cast<size_t>(Phase::update)] = {{update}};
  stages[0].blocks.push_back(tail.finish("update"));
  stages[0].schedule.push_back({Phase::update, 0, 0, 0});
  const Simulation result = simulate(stages, costs, {});
  EXPECT_DOUBLE_EQ(result.step_seconds, 11);  // stage 0: 2, waits until 6, reduces, updates
  EXPECT_DOUBLE_EQ(result.time.bubble, 4);
  EXPECT_DOUBLE_EQ(result.time.data_comm, 1);
}

TEST(Simulator, WaitSendLastsUntilTheReceiverHasTheMessage) {
  PlainCosts costs;
  costs.message = 2;
  BlockBuilder sender, receiver;
  sender.op(1);
  sender.send(1, 0);
  sender.wait_send(0);
  receiver.op(5);
  receiver.receive(0, 0);
  std::vector<Program> stages = {sequence({{Phase::forward, sender.finish("s")}}, mesh_of(2, 1, 1)),
                                 sequence({{Phase::forward, receiver.finish("r")}}, mesh_of(2, 1, 1))};
  stages[1].stage = 1;
  const Simulation result = simulate(stages, costs, {});
  EXPECT_DOUBLE_EQ(result.step_seconds, 7);
  // Both end at 7; the first stage is reported: 1 of work, idle until 5, then the transfer.
  EXPECT_DOUBLE_EQ(result.time.bubble, 4);
  EXPECT_DOUBLE_EQ(result.time.pipeline_comm, 2);
}

TEST(Simulator, ARemovedSendIsReportedAsADeadlock) {
  auto stages = pipeline(2, 3, 1, 1);
  auto& forward = stages[0].blocks[0].instructions;
  forward.pop_back();
  try {
    simulate(stages, PlainCosts{}, {});
    FAIL() << "a receive without a send cannot end";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::environment_failed);
    EXPECT_NE(std::string(error.what()).find("deadlock"), std::string::npos) << error.what();
  }
}

TEST(Simulator, ARemovedOpShortensTheStep) {
  auto stages = pipeline(2, 3, 2, 3);
  const double whole = simulate(stages, PlainCosts{}, {}).step_seconds;
  auto& backward = stages[1].blocks[1].instructions;
  backward.erase(backward.begin());  // the last stage's backward op
  EXPECT_LT(simulate(stages, PlainCosts{}, {}).step_seconds, whole);
}

TEST(Simulator, IndependentErrorsAddInQuadratureSharedOnesInFull) {
  PlainCosts costs;
  costs.spread = 0.2;
  BlockBuilder builder;
  builder.op(30);
  builder.op(40);
  const std::vector<Program> stages = {sequence({{Phase::forward, builder.finish("block")}})};
  Simulation result = simulate(stages, costs, {});
  const double own = 0.2 * std::hypot(30, 40) / 70;
  EXPECT_NEAR(result.high / result.step_seconds - 1, own, 1e-12);
  EXPECT_NEAR(1 - result.low / result.step_seconds, own, 1e-12);
  costs.common = 0.1;
  result = simulate(stages, costs, {});
  EXPECT_NEAR(result.high / result.step_seconds - 1, std::hypot(own, 0.1), 1e-12);
}

TEST(Memory, KindsSumToThePeakOfTheLargestStage) {
  auto stages = pipeline(2, 2, 1, 1);
  for (size_t i = 0; i < stages.size(); ++i) {
    ArenaMap& arena = stages[i].arena;
    arena.parameters.bytes = 100, arena.gradients.bytes = 50, arena.moment1.bytes = 60, arena.moment2.bytes = 60;
    arena.slots.bytes = 600 - 300 * static_cast<int64_t>(i);  // kept activations and temporaries
    stages[i].chunks[0].slot_bytes = 250 - 150 * static_cast<int64_t>(i);
    arena.bytes = 900 - 250 * static_cast<int64_t>(i);
  }
  Target target;
  target.framework_bytes = 1000;
  const Prediction prediction = memory_prediction(stages, target);
  EXPECT_EQ(prediction.peak_bytes, 1900);
  EXPECT_EQ(prediction.arena_bytes, 900);
  EXPECT_EQ(prediction.peak_bytes_by_stage, (std::vector<int64_t>{1900, 1650}));
  const MemoryPrediction& m = prediction.memory;
  EXPECT_EQ(m.parameters + m.gradients + m.optimizer + m.activations + m.scratch + m.framework, prediction.peak_bytes);
  EXPECT_EQ(m.activations, 500);
  EXPECT_EQ(m.optimizer, 120);
}

}  // namespace
}  // namespace foresail
