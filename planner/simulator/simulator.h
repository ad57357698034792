// Plays Programs in virtual time: the queues of one rank per class against each other.
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
  int32_t call = 0, instruction = 0, micro_batch = -1;
  double begin_seconds = 0, end_seconds = 0;
};

struct Simulation {
  double step_seconds = 0, low = 0, high = 0;
  TimePrediction time;                       ///< of the class that finishes last
  std::vector<double> stage_seconds;         ///< busy time of each stage
  std::vector<SimulatedEvent> events;
};

struct SimulationOptions {
  bool record_events = false;
  int64_t devices_per_node = 1;              ///< ranks are placed in world order, node by node
};

/// `stages` holds the Program of every pipeline stage, in order. Throws environment_failed (a defect) on a deadlock.
Simulation simulate(std::span<const Program> stages, const CostModel& costs, const SimulationOptions& options);

/// peak, arena and memory by kind on the stage with the largest peak.
Prediction memory_prediction(std::span<const Program> stages, const Target& target);

}  // namespace foresail
