// How a verb of foresail gets its ranks: the user's process starts itself again under mpirun, watches over the ranks,
// forwards requests to stop, and turns whatever happened into one outcome. The user never types mpirun.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.h"

namespace foresail {

struct LaunchRequest {
  int ranks = 2;                            ///< two or more; one rank runs in process, without mpirun or MPI
  int threads_per_rank = 1;                 ///< becomes OMP_NUM_THREADS
  int64_t bytes_per_rank = 0;               ///< what a rank is known to need; 0: unknown
  std::string program = {};                 ///< empty: this executable
  std::vector<std::string> arguments = {};  ///< without the program's name; used as they are, also if empty
  std::string hostfile = {};                ///< an Open MPI hostfile; empty: this machine
  /// After a request to stop, ranks may take this long to finish their step and write a checkpoint.
  double grace_seconds = 120;
  /// What the user can do after a run that broke: the last part of its error.
  std::string mend = "resume from the last checkpoint";
};

/// The arguments of this process without its name, from the kernel: what most callers put into `arguments`.
std::vector<std::string> own_arguments();

/// Cores this process may run on.
int available_cores();

/// Starts the ranks and waits for their end. Rank 0's standard output and error become this process's; other ranks'
/// output is kept only to explain a death. SIGINT, SIGTERM and SIGHUP ask the ranks to stop; a second one, or the end
/// of the grace time, kills them. No rank outlives the call.
///
/// Returns what rank 0's body returned (run_rank_main). Throws the Error of the first rank that reported one; otherwise
/// environment_failed saying which rank died of what, or `stopped` when the ranks had to be killed; bad_input for a
/// hostfile that cannot hold the ranks; environment_failed if mpirun is missing.
Exit launch_ranks(const LaunchRequest& request);

}  // namespace foresail
