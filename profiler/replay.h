// Ops in sequence: a reduced training step runs through the executor with its trace on, and every op's duration is taken
// where it really happens, with the caches as the ops before it left them and all ranks at work.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "profiler/candidates.h"
#include "profiler/team.h"

namespace foresail {

/// What one candidate's steps showed; keys as in ProfileTable.
struct ReplayResult {
  std::map<std::string, Measurement> ops;  ///< by signature
  std::map<std::string, Measurement>
      collectives;                  ///< of tensor and context parallelism: the wait for the slowest member included
  double step_seconds = 0;          ///< median, for the planning of further steps only
  int64_t outside_arena_bytes = 0;  ///< resident set less the arena: what `framework_bytes` measures
};

/// The candidate's train Program on stage 0, with the workspace that `device` asks for.
Program replay_program(const ReplayCandidate& candidate, const Target& target, Device& device);
/// Signatures of the ops that a step of the Program runs, each once.
std::vector<std::string> op_signatures(const Program& program);
/// FLOPs of one step on one rank: what its duration is estimated from.
double step_flops(const Program& program);

/// Runs one step to warm up, then steps until `seconds` are used, between `least_steps` and 20. Collective over the team.
ReplayResult replay(const Program& program, int64_t vocabulary, Device& device, Team& team, double seconds,
                    int least_steps);

}  // namespace foresail
