// Everything one rank holds during a run: the compiled Programs of its stage, the arena, the bound executors.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "kernels/device.h"
#include "models/model_spec.h"
#include "program/compile.h"
#include "runtime/executor/executor.h"
#include "spec/batch_ramp.h"
#include "spec/plan.h"

namespace foresail {

/// What is compiled and run.
struct SessionRequest {
  ModelSpec model;
  Job job;
  Strategy strategy;
  Target target;
  std::vector<std::string> program_digests;  ///< expected of the job's batch, one per stage; empty: not compared
  std::string source = "plan";               ///< the file that errors name
};

struct Session {
  ModelSpec model;
  Job job;
  Strategy strategy;
  MeshCoordinate place;
  int rank = 0;
  ProgramSet programs;
  std::vector<BatchStage> stages;  ///< of programs.ramp, then of programs.train
  RankSlices slices;
  std::unique_ptr<Device> device;
  std::unique_ptr<Arena> arena;
  std::unique_ptr<Executor> train, evaluate;        ///< over the same arena; only one may be in use at a time
  std::vector<std::unique_ptr<Executor>> ramp;      ///< of programs.ramp, over the same arena too
  std::vector<std::unique_ptr<Executor>> fallback;  ///< of programs.fallback, likewise

  /// What the optimizer step that begins after `samples` runs: a stage of the batch ramp, or the job's batch.
  struct Step {
    const Program& program;
    Executor& executor;
    Executor* fallback = nullptr;  ///< repeats a step whose rows for experts found no room; null: all find room
  };
  Step step_after(int64_t samples);
  /// Runs the constants of a Program whose predecessor in the arena was another one.
  void switch_to(Executor& executor);
  Executor* active = nullptr;
};

SessionRequest request_of(const Plan& plan, const std::string& source = "plan");

/// Compiles every stage of a plan in this process and compares digests: what make_session would refuse on a rank is said
/// before ranks start.
void require_planned_programs(const SessionRequest& request);

/// "cpu" or "reference"; sets the team size of this process. Throws bad_input for another name.
std::unique_ptr<Device> make_device(const std::string& back_end, int threads);

/// Compiles this rank's stage, compares digests, allocates the arena and binds. Creates the mesh's groups on the
/// communicator, so all ranks call it together. `alter` (tests plant faults with it) sees every train Program before it is
/// bound. Throws bad_input when the Program differs from the planned one or a back end lacks a kernel.
using AlterProgram = std::function<void(Program&, const MeshCoordinate&)>;
std::unique_ptr<Session> make_session(const SessionRequest& request, Communicator& communicator,
                                      std::unique_ptr<Device> device, const AlterProgram& alter = {});

/// The group of all ranks in the communicator of a mesh.
GroupId world_group(const Session& session);

}  // namespace foresail
