// What the libraries of a back end ask for beside their operands: it goes into the Target, so that the compiler lays it
// out and nothing is allocated in a step.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "kernels/device.h"
#include "models/model_spec.h"
#include "program/program.h"
#include "spec/job.h"
#include "spec/strategy.h"
#include "spec/target.h"

namespace foresail {

/// Bytes by op signature of every op of the Program that needs any.
std::map<std::string, int64_t> workspace_of(const Program& program, Device& device);

/// Adds to the target what the device asks for in every stage's train and evaluation Program of the strategy; the larger
/// value stays where one is known. Throws bad_input if the strategy is not legal.
void add_workspace(Target& target, const ModelSpec& model, const Job& job, const Strategy& strategy, Device& device);

}  // namespace foresail
