#include "comm/mpi/request_table.h"

#include <limits>
#include <string>

#include "comm/mpi/mpi_check.h"
#include "core/error.h"

namespace foresail {
namespace {

constexpr size_t kInitialSlots = 1024;  // far above what a pipeline schedule keeps in flight

}  // namespace

MessageType::MessageType(int64_t bytes) {
  if (bytes <= std::numeric_limits<int>::max()) {
    count_ = static_cast<int>(bytes);
    return;
  }
  constexpr int64_t kBlock = int64_t{1} << 20;
  const int64_t blocks = bytes / kBlock;
  ensure(blocks <= std::numeric_limits<int>::max(), "one message is below 2 PiB");
  MPI_Datatype block = MPI_DATATYPE_NULL, body = MPI_DATATYPE_NULL;
  check_mpi(MPI_Type_contiguous(static_cast<int>(kBlock), MPI_BYTE, &block), "MPI_Type_contiguous");
  check_mpi(MPI_Type_contiguous(static_cast<int>(blocks), block, &body), "MPI_Type_contiguous");
  const int lengths[2] = {1, static_cast<int>(bytes % kBlock)};
  const MPI_Aint offsets[2] = {0, blocks * kBlock};
  const MPI_Datatype types[2] = {body, MPI_BYTE};
  check_mpi(MPI_Type_create_struct(2, lengths, offsets, types, &type_), "MPI_Type_create_struct");
  check_mpi(MPI_Type_commit(&type_), "MPI_Type_commit");
  check_mpi(MPI_Type_free(&body), "MPI_Type_free");
  check_mpi(MPI_Type_free(&block), "MPI_Type_free");
  count_ = 1;
  derived_ = true;
}

MessageType::~MessageType() {
  if (derived_) MPI_Type_free(&type_);
}

RequestTable::RequestTable() { grow(kInitialSlots); }

void RequestTable::grow(size_t entries) {
  const size_t before = entries_.size();
  entries_.resize(entries);
  free_.reserve(entries);
  for (size_t index = entries; index > before; --index) free_.push_back(static_cast<Communicator::Request>(index - 1));
}

Communicator::Request RequestTable::add(MPI_Request request, int64_t expected_bytes) {
  const std::lock_guard lock(mutex_);
  if (free_.empty()) grow(2 * entries_.size());
  const Communicator::Request index = free_.back();
  free_.pop_back();
  entries_[static_cast<size_t>(index)] = {request, expected_bytes, true};
  return index;
}

RequestTable::Entry RequestTable::release(Communicator::Request index) {
  const std::lock_guard lock(mutex_);
  ensure(index >= 0 && index < static_cast<Communicator::Request>(entries_.size()) &&
             entries_[static_cast<size_t>(index)].in_flight,
         "a request that is waited for has been started");
  const Entry entry = entries_[static_cast<size_t>(index)];
  entries_[static_cast<size_t>(index)] = Entry{};
  free_.push_back(index);
  return entry;
}

void RequestTable::wait(Communicator::Request index) {
  Entry entry = release(index);
  MPI_Status status;
  check_mpi(MPI_Wait(&entry.request, &status), "MPI_Wait");
  if (entry.expected_bytes >= 0) check_received(status, entry.expected_bytes);
}

void check_received(const MPI_Status& status, int64_t expected_bytes) {
  MPI_Count received = 0;
  check_mpi(MPI_Get_elements_x(&status, MPI_BYTE, &received), "MPI_Get_elements_x");
  if (received == expected_bytes) return;
  throw_environment(
      "message from rank " + std::to_string(status.MPI_SOURCE),
      std::to_string(received) + " bytes arrived where " + std::to_string(expected_bytes) + " were expected",
      "check that all hosts run the same foresail binary");
}

}  // namespace foresail
