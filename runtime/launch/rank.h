// The other side of launch.h: what a process that was started as a rank knows about itself, and how it ends.
#pragma once

#include <functional>
#include <string>

#include "core/error.h"

namespace foresail {

struct RankEnvironment {
  bool ranked = false;  ///< started by launch_ranks
  int rank = 0, size = 1;
  std::string channel;    ///< folder shared with the launcher on its host; unusable elsewhere
  bool terminal = false;  ///< the user's standard error is a terminal (rank 0's own is a pipe to the launcher)
};

/// Reads what the launcher put into the environment; read once, in main(). Throws bad_input if the user typed mpirun.
RankEnvironment detect_rank_environment();

/// Runs `body` as this process's main. Not ranked: installs the stop signals and returns body's result; errors pass.
/// Ranked: connects the streams, dies with its launcher, reports an Error to the launcher and ends the whole run by
/// ending this process; returns Exit::done to mpirun after an orderly end, whose true outcome rank 0 reports to the
/// launcher.
Exit run_rank_main(const RankEnvironment& environment, const std::function<Exit()>& body);

/// True once somebody asked this process to stop (SIGINT or SIGTERM; a rank: SIGUSR1, which the launcher sends). Ranks
/// may learn it at different steps: they agree through a collective before they act.
bool stop_requested();

}  // namespace foresail
