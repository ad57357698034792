// The mpirun command line and environment for a run: a pure function of the request and of what this machine allows.
#pragma once

#include <string>
#include <vector>

#include "runtime/launch/launch.h"

namespace foresail {

/// What the command depends on beside the request.
struct HostFacts {
  int cores = 1;
  bool root = false;
  bool single_copy = true;  ///< process_vm_readv is permitted (Open MPI's CMA; container profiles may refuse it)
  bool terminal = false;    ///< standard error is a terminal
};

HostFacts detect_host_facts();

struct Hosts {
  int count = 1;
  int slots = 0;  ///< 0: at least one line leaves it to Open MPI
};

/// Reads an Open MPI hostfile. Throws bad_input if it is missing or names no host, or a slot count is no number.
Hosts read_hostfile(const std::string& path);

/// Arguments of mpirun, itself first. `channel` is the run's folder.
std::vector<std::string> mpirun_command(const LaunchRequest& request, const HostFacts& facts, const Hosts& hosts,
                                        const std::string& mpirun, const std::string& program,
                                        const std::string& channel);

/// The absolute path of mpirun on PATH. Throws environment_failed.
std::string find_mpirun();

/// The absolute path of this executable. Throws environment_failed if it was deleted since its start.
std::string own_executable();

}  // namespace foresail
