// Trains a small model for a few steps under a strategy and gathers everything in global coordinates, so that any two
// strategies can be compared tensor by tensor.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "kernels/device.h"
#include "models/model_spec.h"
#include "ops/step_inputs.h"
#include "program/dependencies.h"
#include "program/program.h"
#include "spec/job.h"
#include "spec/strategy.h"
#include "tests/equivalence/gather.h"

namespace foresail::testing {

struct Experiment {
  ModelSpec model;
  Job job;  ///< sequence_length, global_batch, precision, optimizer
  Strategy strategy;
  std::string device = "reference";
  bool fused_kernels = true;
  bool unfused_attention = false;
  bool serialise_queues = false;
  int64_t steps = 10;
};

/// This rank's persistent state before the first step.
struct State {
  const Program& program;
  const RankSlices& slices;
  std::byte* arena = nullptr;
};

/// What a planted fault may change. Everything is empty in an honest run.
struct Fault {
  std::string name;
  std::function<void(Program&, const MeshCoordinate&)> program;
  std::function<void(StepInputs&, const MeshCoordinate&)> step_inputs;
  /// Wraps the device (kernels that misbehave).
  std::function<std::unique_ptr<Device>(std::unique_ptr<Device>)> device;
  std::function<void(const State&, const MeshCoordinate&)> state;
  /// What the queues wait for.
  std::function<void(const Program&, Dependencies&)> dependencies;
  /// Where the micro-batches' tokens and targets lie, after they were filled.
  std::function<void(std::span<int32_t> tokens, std::span<int32_t> targets, int64_t micro_batch)> data;
};

struct Outcome {
  Tensors gradients;           ///< reduced, before clipping, step 1
  Tensors updates;             ///< p_steps - p_0
  std::vector<double> losses;  ///< by step
  std::vector<double> grad_norms;
  std::vector<double> auxiliary_losses;
  int64_t repeated_steps = 0;       ///< because rows for experts found no room
  std::vector<double> evaluations;  ///< loss of the evaluation Program before and after training
  /// Facts that must hold in every run: empty, or what is wrong (arena sizes, gaps or padding touched, copies that
  /// differ, static checks).
  std::vector<std::string> violations;
};

/// The groups that run_experiment needs, for PartOfWorld: those of the strategy's mesh.
std::vector<std::vector<int>> groups_of(const Experiment& experiment);

/// The outcome on every rank of the communicator, which has exactly the strategy's ranks.
Outcome run_experiment(const Experiment& experiment, Communicator& communicator, const Fault& fault = {});

/// `text` of every rank, on every rank; what exceeds `most` bytes is cut off.
std::vector<std::string> all_texts(const std::string& text, size_t most, Communicator& communicator, GroupId group);

}  // namespace foresail::testing
