// Two ways to bring the buffers of a group's members together for a reduction; both add in rank order.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/communicator.h"
#include "comm/mpi/mpi_c.h"

namespace foresail {

/// Reductions over one group of two or more members. Collective: all members make the same calls in the same order.
class Reducer {
 public:
  virtual ~Reducer() = default;
  virtual void all_reduce(std::byte* data, int64_t count, DType dtype, ReduceKind kind) = 0;
  /// See Communicator::reduce_scatter; `output` may be any part of `input`.
  virtual void reduce_scatter(const std::byte* input, std::byte* output, int64_t count, DType dtype) = 0;
};

/// Members of one host: each copies a piece into its slot of an MPI-3 shared window, and all read all slots.
/// `piece_bytes` per member and slot, two slots each. Collective over `comm`, which must outlive the reducer.
std::unique_ptr<Reducer> make_window_reducer(MPI_Comm comm, int64_t piece_bytes);

/// Members anywhere: slices travel by MPI_Alltoallv, results by MPI_Allgatherv.
std::unique_ptr<Reducer> make_message_reducer(MPI_Comm comm, int64_t piece_bytes);

}  // namespace foresail
