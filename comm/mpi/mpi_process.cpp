#include "comm/mpi/mpi_process.h"

#include <cstdlib>

#include "comm/mpi/mpi_check.h"
#include "core/error.h"

namespace foresail {
namespace {

// MPI itself is process-wide state that cannot be opened twice; this flag mirrors it and nothing else.
bool forsaken = false;

void finalise_at_exit() {
  int initialised = 0, finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (initialised && !finalised && !forsaken) MPI_Finalize();
}

bool started_as_rank() {
  // mpirun sets the first, every PMIx launcher (srun --mpi=pmix) the second.
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr || std::getenv("PMIX_RANK") != nullptr;
}

}  // namespace

void start_mpi() {
  int initialised = 0, finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  ensure(!finalised, "MPI is not used after its end");
  if (initialised) return;
  if (!started_as_rank()) {
    throw_environment("MPI", "this process was not started as a rank of a run",
                      "start it with `foresail train`, `stress` or `profile`, which start their own ranks");
  }
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  if (provided < MPI_THREAD_FUNNELED) {
    throw_environment("MPI", "the library does not allow threads beside the one that communicates",
                      "install an Open MPI with thread support (Debian: openmpi-bin)");
  }
  check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  std::atexit(finalise_at_exit);
}

bool mpi_is_concurrent() {
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  return provided == MPI_THREAD_MULTIPLE;
}

void forsake_mpi() { forsaken = true; }

std::string mpi_description() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  check_mpi(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  // "Open MPI v4.1.4, package: Debian OpenMPI, ...": the first field is what identifies it.
  std::string name(text, static_cast<size_t>(length));
  name = name.substr(0, name.find(','));
  const size_t version = name.find(" v");
  if (version != std::string::npos) name.erase(version + 1, 1);
  return name;
}

std::vector<int> first_rank_of_each_host() {
  int rank = 0, size = 0, first = 0;
  check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  MPI_Comm host = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &host),
            "MPI_Comm_split_type");
  check_mpi(MPI_Allreduce(&rank, &first, 1, MPI_INT, MPI_MIN, host), "MPI_Allreduce");
  check_mpi(MPI_Comm_free(&host), "MPI_Comm_free");
  std::vector<int> first_of(static_cast<size_t>(size));
  check_mpi(MPI_Allgather(&first, 1, MPI_INT, first_of.data(), 1, MPI_INT, MPI_COMM_WORLD), "MPI_Allgather");
  return first_of;
}

}  // namespace foresail
