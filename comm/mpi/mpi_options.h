// How the MPI engine reduces; the defaults are right for every run, tests choose each path on purpose.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/communicator.h"

namespace foresail {

struct MpiOptions {
  /// Groups whose members share a host reduce through an MPI shared-memory window. False: always through messages, as
  /// groups that span hosts do. Both add in rank order, so both give the same bits.
  bool shared_windows = true;
  /// Large reductions run in pieces of this many bytes per rank (a slot of the window, or a staging buffer): pieces
  /// that stay in cache, where one large call page-faults fresh temporaries each time (docs/comm.md has the
  /// measurement).
  int64_t piece_bytes = int64_t{256} << 10;
};

std::unique_ptr<Communicator> make_mpi_communicator(const MpiOptions& options);

}  // namespace foresail
