// Plays Programs in virtual time: the queues of one rank per class against each other.
//
// Rules. Instructions of one queue run in program order. An instruction also starts no earlier than the instructions of
// other queues end that it must not overtake (program/dependencies.h: derived from the bytes that both touch, across
// blocks and micro-batches, as for the executor); what touches nothing in common runs side by side. A send costs its
// issue; a receive begins when it is reached and its message was posted and then lasts the message's duration;
// wait_send ends when all but its `keep` latest outstanding messages of the channel have arrived. A message is known by
// both stages, channel (boundary between virtual stages, direction) and micro-batch; a hand-over between two chunks of
// one stage is none. A collective over ranks of several stages begins when the last stage reaches it; ranks of one
// stage behave alike and arrive together. The step ends when all queues of all stages have run empty.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "planner/simulator/cost_model.h"
#include "program/program.h"
#include "spec/plan.h"

namespace foresail {

/// One played instruction (only recorded when asked for).
struct SimulatedEvent {
  int32_t stage = 0;
  Queue queue{};
  Phase phase{};
  int32_t chunk = 0, call = 0, instruction = 0, micro_batch = -1;
  double begin_seconds = 0, end_seconds = 0;
};

struct Simulation {
  double step_seconds = 0, low = 0, high = 0;
  TimePrediction time;                ///< of the class that finishes last; the values sum to step_seconds
  std::vector<double> stage_seconds;  ///< busy time of each stage
  std::vector<SimulatedEvent> events;
  int64_t instructions = 0;  ///< played, of all stages
};

struct SimulationOptions {
  bool record_events = false;
  int64_t devices_per_node = 1;  ///< ranks are placed in world order, node by node
};

/// `stages` holds the Program of every pipeline stage, in order. Throws environment_failed (a defect) on a deadlock.
///
/// low and high bound an 80 % interval: step_seconds times 1 -+ sqrt(own^2 + common^2). `own` adds the spreads of
/// distinct instructions in quadrature, each weighted by its share of the busiest stage's time: different measurements
/// err independently, all executions of one err alike. `common` is the cost model's shared part, which never averages
/// out.
Simulation simulate(std::span<const Program> stages, const CostModel& costs, const SimulationOptions& options);

/// peak, arena and memory by kind on the stage with the largest peak. Parameters, gradients and optimizer state are what
/// lasts (under ZeRO this rank's shard); `activations` are the slots of all chunks with what they carry from backward to
/// the weight gradient; `scratch` is the rest of the arena: temporaries, gathered parameters and the transient gradients
/// of a micro-batch under ZeRO, data, constants, layout holes.
Prediction memory_prediction(std::span<const Program> stages, const Target& target);

/// Rates and shares that follow from step_seconds: tokens per second, model FLOP/s, mfu, hfu. `devices` of the whole
/// mesh, `peak_flops_per_second` of one; 0 leaves mfu and hfu 0.
void fill_rates(std::span<const Program> stages, int64_t devices, double peak_flops_per_second, Prediction& prediction);

}  // namespace foresail
