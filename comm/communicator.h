// How ranks talk. One abstract group of calls, one folder per engine: local/ (a single rank) and mpi/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace foresail {

enum class ReduceKind : uint8_t { sum, max };

/// A subset of ranks that communicate collectively; an index into the list given to `create_groups`.
using GroupId = int32_t;

/// Threads: a group is used by one thread at a time, and so is point to point. If `concurrent()`, different groups, and
/// point to point beside them, may be used by different threads at once, also where their members are the same.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual bool concurrent() const = 0;

  /// Creates every group of the run once, in the order of `groups` (world ranks, ascending), on all ranks alike; ranks
  /// that are in no member list of an entry take part all the same. Entry i becomes GroupId i. Groups of one rank are
  /// legal and cost nothing. Calling it again replaces the groups.
  virtual void create_groups(const std::vector<std::vector<int>>& groups) = 0;
  virtual int group_rank(GroupId group) const = 0;  ///< -1 if this rank is not a member
  virtual int group_size(GroupId group) const = 0;

  // Collectives: blocking, in place where one pointer is given, results bitwise equal on all members and from run to run.
  virtual void all_reduce(void* data, int64_t count, DType dtype, ReduceKind kind, GroupId group) = 0;
  /// `output` holds group_size x count elements in group order; `input` may point at this rank's part of it.
  virtual void all_gather(const void* input, void* output, int64_t count, DType dtype, GroupId group) = 0;
  /// `input` holds group_size x count elements; `output` gets this rank's reduced part and may point into input.
  virtual void reduce_scatter(const void* input, void* output, int64_t count, DType dtype, GroupId group) = 0;
  /// `input` and `output` hold group_size x count elements and do not overlap: part i of the input goes to group rank i,
  /// part j of the output comes from group rank j.
  virtual void all_to_all(const void* input, void* output, int64_t count, DType dtype, GroupId group) = 0;
  /// `input` goes to the next group rank, `output` comes from the previous one (the last is before the first); disjoint.
  virtual void ring_shift(const void* input, void* output, int64_t bytes, GroupId group) = 0;
  virtual void broadcast(void* data, int64_t bytes, int root_in_group, GroupId group) = 0;
  virtual void barrier(GroupId group) = 0;

  // Point to point between world ranks, oneself included; messages match by (peer, tag) in order. The payload must stay
  // untouched until wait() returns.
  using Request = int32_t;
  virtual Request send(const void* data, int64_t bytes, int peer, int tag) = 0;
  virtual Request receive(void* data, int64_t bytes, int peer, int tag) = 0;
  virtual void wait(Request request) = 0;

  /// Ends all ranks at once with `message` on standard error of this one; for errors that peers cannot see.
  [[noreturn]] virtual void abort(const std::string& message) = 0;
  /// "Open MPI 4.1.4", "single rank".
  virtual std::string description() const = 0;
};

std::unique_ptr<Communicator> make_local_communicator();
/// Initialises MPI (once per process). Throws environment_failed when not started by mpirun.
std::unique_ptr<Communicator> make_mpi_communicator();

}  // namespace foresail
