// MPI as this process's own: initialised once, finalised at exit.
#pragma once

#include <string>
#include <vector>

#include "comm/mpi/mpi_c.h"

namespace foresail {

/// Initialises MPI on the first call. Asks for MPI_THREAD_MULTIPLE and is content with FUNNELED (only the main thread
/// calls it). Throws environment_failed if this process was not started as a rank or the library grants less.
void start_mpi();

/// Whether the library granted MPI_THREAD_MULTIPLE. After start_mpi().
bool mpi_is_concurrent();

/// From now on this process ends without MPI_Finalize, which would wait for peers that wait for us; the launcher sees
/// that and ends the run.
void forsake_mpi();

/// "Open MPI 4.1.4".
std::string mpi_description();

/// For every world rank the lowest world rank on the same host. Collective over the world.
std::vector<int> first_rank_of_each_host();

}  // namespace foresail
