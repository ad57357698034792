// Point-to-point bookkeeping: request slots allocated once, and datatypes for messages beyond 2 GiB.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/mpi_c.h"

namespace foresail {

/// `bytes` as (count, datatype): MPI counts are ints. Up to 2^31 - 1 bytes this is MPI_BYTE and allocates nothing;
/// above, one element of a derived type, freed on destruction (MPI keeps it alive for operations in flight).
class MessageType {
 public:
  explicit MessageType(int64_t bytes);
  ~MessageType();
  MessageType(const MessageType&) = delete;
  MessageType& operator=(const MessageType&) = delete;
  int count() const { return count_; }
  MPI_Datatype get() const { return type_; }

 private:
  int count_ = 0;
  MPI_Datatype type_ = MPI_BYTE;
  bool derived_ = false;
};

/// Throws environment_failed unless the completed receive of `status` delivered `expected_bytes`.
void check_received(const MPI_Status& status, int64_t expected_bytes);

/// Operations in flight. Slots are reused; the table grows only if more operations than ever before are in flight at
/// once. Threads may use it together (nobody waits for a message while holding the lock).
class RequestTable {
 public:
  RequestTable();
  /// Keeps a started operation. `expected_bytes`: what a receive must deliver; -1 for a send.
  Communicator::Request add(MPI_Request request, int64_t expected_bytes);
  /// Waits, then frees the slot. Throws environment_failed if the operation failed or delivered another size.
  void wait(Communicator::Request index);

 private:
  struct Entry {
    MPI_Request request = MPI_REQUEST_NULL;
    int64_t expected_bytes = -1;
    bool in_flight = false;
  };
  void grow(size_t entries);
  /// Marks the slot free and returns what it held.
  Entry release(Communicator::Request index);

  std::mutex mutex_;
  std::vector<Entry> entries_;
  std::vector<Communicator::Request> free_;
};

}  // namespace foresail
