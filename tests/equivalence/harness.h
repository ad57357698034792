// Trains a small model for a few steps under a strategy and gathers everything in global coordinates, so that any two
// strategies can be compared tensor by tensor. All ranks of the communicator call it together; ranks beyond the mesh only
// take part in creating groups.
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
#include "program/program.h"
#include "spec/job.h"
#include "spec/strategy.h"

namespace foresail::testing {

/// What a planted fault may change. Everything is empty in an honest run.
struct Fault {
  std::string name;
  std::function<void(Program&, const MeshCoordinate&)> program;
  std::function<void(StepInputs&, const MeshCoordinate&)> step_inputs;
  /// Wraps the device (kernels that misbehave).
  std::function<std::unique_ptr<Device>(std::unique_ptr<Device>)> device;
};

struct Experiment {
  ModelSpec model;
  Job job;  ///< sequence_length, global_batch, precision, optimizer
  Strategy strategy;
  std::string device = "reference";
  bool fused_kernels = true;
  bool unfused_attention = false;
  int64_t steps = 10;
};

using Tensors = std::map<std::string, std::vector<double>>;  ///< by logical name, row-major

struct Outcome {
  Tensors gradients;           ///< reduced, before clipping, step 1
  Tensors updates;             ///< p_steps - p_0
  std::vector<double> losses;  ///< by step
  std::vector<double> grad_norms;
  std::vector<double> evaluations;  ///< loss of the evaluation Program before and after training
  /// Facts that must hold in every run: empty, or what is wrong (arena sizes, gaps touched, replicas that differ,
  /// static checks).
  std::vector<std::string> violations;
};

/// The outcome on every rank of the communicator.
Outcome run_experiment(const Experiment& experiment, Communicator& communicator, const Fault& fault = {});

}  // namespace foresail::testing
