// Reductions of groups that span hosts: a reduce-scatter by personalised exchange, then an all-gather (Thakur,
// Rabenseifner & Gropp 2005, section 4.2, pairwise exchange): the least bytes per link, and each element is added by
// one rank, in rank order, whatever algorithms the library picks for the transport.
#include <cstring>
#include <vector>

#include "comm/mpi/mpi_check.h"
#include "comm/mpi/rank_order.h"
#include "comm/mpi/reducer.h"

namespace foresail {
namespace {

/// Up to this many bytes per member everyone gets everything in one collective, which halves the latency.
constexpr int64_t kSmallBytes = 8 << 10;

class MessageReducer final : public Reducer {
 public:
  MessageReducer(MPI_Comm comm, int64_t piece_bytes) : comm_(comm), piece_bytes_(piece_bytes) {
    check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    // A piece holds at least one 8-byte element per member; small buffers are received whole from everyone.
    piece_bytes_ = std::max(piece_bytes_, int64_t{8} * size_);
    outgoing_.resize(static_cast<size_t>(piece_bytes_));
    incoming_.resize(static_cast<size_t>(std::max(piece_bytes_ + 8 * size_, kSmallBytes * size_)));
    for (std::vector<int>* table : {&send_bytes_, &send_at_, &receive_bytes_, &receive_at_}) {
      table->resize(static_cast<size_t>(size_));
    }
    sources_.resize(static_cast<size_t>(size_));
  }

  void all_reduce(std::byte* data, int64_t count, DType dtype, ReduceKind kind) override {
    const int64_t element = size_of(dtype);
    const int64_t piece = piece_bytes_ / element;
    for (int64_t begin = 0; begin < count; begin += piece) {
      const int64_t length = std::min(piece, count - begin);
      if (length * element <= kSmallBytes) {
        reduce_small(data + begin * element, length, dtype, kind);
      } else {
        reduce_piece(data + begin * element, length, dtype, kind);
      }
    }
  }

  void reduce_scatter(const std::byte* input, std::byte* output, int64_t count, DType dtype) override {
    const int64_t element = size_of(dtype);
    const int64_t piece = piece_bytes_ / element / size_;
    for (int64_t begin = 0; begin < count; begin += piece) {
      const int64_t length = std::min(piece, count - begin);
      const int bytes = static_cast<int>(length * element);
      for (int part = 0; part < size_; ++part) {
        std::memcpy(outgoing_.data() + int64_t{part} * bytes, input + (part * count + begin) * element,
                    static_cast<size_t>(bytes));
      }
      check_mpi(MPI_Alltoall(outgoing_.data(), bytes, MPI_BYTE, incoming_.data(), bytes, MPI_BYTE, comm_),
                "MPI_Alltoall");
      reduce_in_rank_order(incoming(bytes), output + begin * element, length, dtype, ReduceKind::sum);
    }
  }

 private:
  /// What everybody sent, in rank order, `bytes` each.
  std::span<const std::byte* const> incoming(int64_t bytes) {
    for (size_t member = 0; member < sources_.size(); ++member) {
      sources_[member] = incoming_.data() + static_cast<int64_t>(member) * bytes;
    }
    return sources_;
  }

  void reduce_small(std::byte* data, int64_t count, DType dtype, ReduceKind kind) {
    const int bytes = static_cast<int>(count * size_of(dtype));
    check_mpi(MPI_Allgather(data, bytes, MPI_BYTE, incoming_.data(), bytes, MPI_BYTE, comm_), "MPI_Allgather");
    reduce_in_rank_order(incoming(bytes), data, count, dtype, kind);
  }

  void reduce_piece(std::byte* data, int64_t count, DType dtype, ReduceKind kind) {
    const int64_t element = size_of(dtype);
    const auto begin_of = [&](int member) { return count * member / size_; };
    const int64_t mine = begin_of(rank_ + 1) - begin_of(rank_);
    for (int member = 0; member < size_; ++member) {
      const auto at = static_cast<size_t>(member);
      send_at_[at] = static_cast<int>(begin_of(member) * element);
      send_bytes_[at] = static_cast<int>((begin_of(member + 1) - begin_of(member)) * element);
      receive_at_[at] = static_cast<int>(member * mine * element);
      receive_bytes_[at] = static_cast<int>(mine * element);
    }
    check_mpi(MPI_Alltoallv(data, send_bytes_.data(), send_at_.data(), MPI_BYTE, incoming_.data(),
                            receive_bytes_.data(), receive_at_.data(), MPI_BYTE, comm_),
              "MPI_Alltoallv");
    reduce_in_rank_order(incoming(mine * element), data + begin_of(rank_) * element, mine, dtype, kind);
    check_mpi(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_BYTE, data, send_bytes_.data(), send_at_.data(), MPI_BYTE, comm_),
              "MPI_Allgatherv");
  }

  MPI_Comm comm_;
  int64_t piece_bytes_;
  int rank_ = 0, size_ = 0;
  std::vector<std::byte> outgoing_, incoming_;
  std::vector<int> send_bytes_, send_at_, receive_bytes_, receive_at_;
  std::vector<const std::byte*> sources_;
};

}  // namespace

std::unique_ptr<Reducer> make_message_reducer(MPI_Comm comm, int64_t piece_bytes) {
  return std::make_unique<MessageReducer>(comm, piece_bytes);
}

}  // namespace foresail
