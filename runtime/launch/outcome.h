// From what is left of a run (reports in its folder, mpirun's words and status) to one outcome.
#pragma once

#include <string>
#include <vector>

#include "runtime/launch/channel.h"

namespace foresail {

struct RunRemains {
  std::string channel = {};
  int ranks = 2;
  std::string mend = "resume from the last checkpoint";
  int wait_status = 0;                            ///< of mpirun
  std::vector<std::string> mpirun_lines = {};     ///< its own standard error
  std::vector<std::string> rank_zero_lines = {};  ///< the last lines of rank 0's standard error
  bool stop_was_requested = false;
  std::string killed_because = {};  ///< by the launcher; "" if it did not kill
  bool output_lost = false;         ///< rank 0's output could not be written on
};

/// The exit to return, or the Error to throw (see launch_ranks).
Exit outcome_of(const RunRemains& remains);

/// "SIGKILL"; "signal 77" if it has no name.
std::string signal_name(int signal);

}  // namespace foresail
