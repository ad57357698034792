// Processes of a run, found through the kernel: each carries the run's folder in its environment.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace foresail {

/// All live processes of this host whose environment holds `channel` as kChannelVariable.
std::vector<pid_t> ranks_of_run(const std::string& channel);

}  // namespace foresail
