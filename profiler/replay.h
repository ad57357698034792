// Ops in sequence: a reduced training step runs through the executor with its trace on, and every op's duration is taken
// where it really happens, with the caches as the ops before it left them and all ranks at work.
#pragma once

#include <map>
#include <string>

#include "kernels/device.h"
#include "profiler/candidates.h"
#include "profiler/team.h"

namespace foresail {

/// What one candidate's steps showed; keys as in ProfileTable.
struct ReplayResult {
  std::map<std::string, Measurement> ops;          ///< by signature
  std::map<std::string, Measurement> collectives;  ///< of tensor parallelism: the wait for the slowest member included
  double step_seconds = 0;                         ///< median, for the planning of further steps only
  int64_t outside_arena_bytes = 0;                 ///< resident set less the arena: what `framework_bytes` measures
};

/// Runs one step to warm up, then steps until `seconds` are used, between `least_steps` and 20. Collective over the team.
ReplayResult replay(const Candidate& candidate, Device& device, const Target& target, Team& team, double seconds,
                    int least_steps);

/// Bytes of arena that the candidate needs on this rank.
int64_t replay_arena_bytes(const Candidate& candidate, const Target& target);

/// The sum of the candidate's FLOPs on one rank: what its duration is estimated from.
double replay_flops(const Candidate& candidate, const Target& target);

}  // namespace foresail
