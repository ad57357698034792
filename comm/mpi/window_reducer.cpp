// Reductions through an MPI-3 shared window (Hoefler et al., "MPI + MPI: a new hybrid approach to parallel programming
// with MPI plus shared memory", Computing 95, 2013). The window has two slots per member, used alternately.
//
// Why a slot may be overwritten without a further barrier: every use of a slot is "write mine, barrier, read all".
// Before I write a slot again I have passed the barrier of the use in between, and a peer enters that barrier only when
// it has finished reading.
#include <cstring>
#include <exception>
#include <vector>

#include "comm/mpi/mpi_check.h"
#include "comm/mpi/rank_order.h"
#include "comm/mpi/reducer.h"

namespace foresail {
namespace {

constexpr int64_t kCacheLine = 64;
/// Up to this many bytes every member reduces the whole buffer itself: one barrier in place of two.
constexpr int64_t kSmallBytes = 8 << 10;

class WindowReducer final : public Reducer {
 public:
  WindowReducer(MPI_Comm comm, int64_t piece_bytes);
  ~WindowReducer() override;

  void all_reduce(std::byte* data, int64_t count, DType dtype, ReduceKind kind) override;
  void reduce_scatter(const std::byte* input, std::byte* output, int64_t count, DType dtype) override;

 private:
  struct Slice {
    int64_t begin, count;
  };

  /// What `member` reduces of a piece of `count` elements; slices start on cache lines.
  Slice slice_of(int member, int64_t count, int64_t element_bytes) const;
  void all_reduce_piece(std::byte* data, int64_t count, DType dtype, ReduceKind kind);
  std::byte* my_slot() const { return slots_[parity_][static_cast<size_t>(rank_)]; }
  /// The same offset in all members' current slots.
  std::span<const std::byte* const> sources_at(int64_t offset);
  /// Makes what was written before visible to all members, and waits for them.
  void meet();

  MPI_Comm comm_;
  MPI_Win window_ = MPI_WIN_NULL;
  int rank_ = 0, size_ = 0;
  int64_t slot_bytes_ = 0;
  std::vector<std::byte*> slots_[2];
  std::vector<const std::byte*> sources_;
  int parity_ = 0;
};

WindowReducer::WindowReducer(MPI_Comm comm, int64_t piece_bytes) : comm_(comm) {
  check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  // A reduce-scatter piece holds at least one cache line for every member.
  slot_bytes_ = std::max(piece_bytes / kCacheLine, int64_t{size_}) * kCacheLine;
  MPI_Info info = MPI_INFO_NULL;
  check_mpi(MPI_Info_create(&info), "MPI_Info_create");
  check_mpi(MPI_Info_set(info, "alloc_shared_noncontig", "true"), "MPI_Info_set");  // each member's pages near its core
  void* mine = nullptr;
  check_mpi(MPI_Win_allocate_shared(2 * slot_bytes_, 1, info, comm_, &mine, &window_),
            "MPI_Win_allocate_shared (is /dev/shm full or very small?)");
  check_mpi(MPI_Info_free(&info), "MPI_Info_free");
  check_mpi(MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN), "MPI_Win_set_errhandler");
  for (int member = 0; member < size_; ++member) {
    MPI_Aint bytes = 0;
    int unit = 0;
    void* base = nullptr;
    check_mpi(MPI_Win_shared_query(window_, member, &bytes, &unit, &base), "MPI_Win_shared_query");
    slots_[0].push_back(static_cast<std::byte*>(base));
    slots_[1].push_back(static_cast<std::byte*>(base) + slot_bytes_);
  }
  sources_.resize(static_cast<size_t>(size_));
  check_mpi(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_), "MPI_Win_lock_all");
}

WindowReducer::~WindowReducer() {
  // Freeing waits for the peers; when an error unwinds this rank they may never come.
  if (std::uncaught_exceptions() > 0) return;
  MPI_Win_unlock_all(window_);
  MPI_Win_free(&window_);
}

void WindowReducer::meet() {
  check_mpi(MPI_Win_sync(window_), "MPI_Win_sync");
  check_mpi(MPI_Barrier(comm_), "MPI_Barrier");
  check_mpi(MPI_Win_sync(window_), "MPI_Win_sync");
}

std::span<const std::byte* const> WindowReducer::sources_at(int64_t offset) {
  for (size_t member = 0; member < sources_.size(); ++member) sources_[member] = slots_[parity_][member] + offset;
  return sources_;
}

WindowReducer::Slice WindowReducer::slice_of(int member, int64_t count, int64_t element_bytes) const {
  const int64_t grain = kCacheLine / element_bytes;
  const int64_t lines = (count + grain - 1) / grain;
  const int64_t begin = std::min(count, lines * member / size_ * grain);
  const int64_t end = std::min(count, lines * (member + 1) / size_ * grain);
  return {begin, end - begin};
}

void WindowReducer::all_reduce_piece(std::byte* data, int64_t count, DType dtype, ReduceKind kind) {
  const int64_t element = size_of(dtype);
  std::memcpy(my_slot(), data, static_cast<size_t>(count * element));
  meet();
  if (count * element <= kSmallBytes) {
    reduce_in_rank_order(sources_at(0), data, count, dtype, kind);
  } else {
    // Nobody else reads my slice of my slot, so the result may replace it there.
    const Slice mine = slice_of(rank_, count, element);
    reduce_in_rank_order(sources_at(mine.begin * element), my_slot() + mine.begin * element, mine.count, dtype, kind);
    meet();
    for (int member = 0; member < size_; ++member) {
      const Slice slice = slice_of(member, count, element);
      std::memcpy(data + slice.begin * element, slots_[parity_][static_cast<size_t>(member)] + slice.begin * element,
                  static_cast<size_t>(slice.count * element));
    }
  }
  parity_ ^= 1;
}

void WindowReducer::all_reduce(std::byte* data, int64_t count, DType dtype, ReduceKind kind) {
  const int64_t element = size_of(dtype);
  const int64_t piece = slot_bytes_ / element;
  for (int64_t begin = 0; begin < count; begin += piece) {
    all_reduce_piece(data + begin * element, std::min(piece, count - begin), dtype, kind);
  }
}

void WindowReducer::reduce_scatter(const std::byte* input, std::byte* output, int64_t count, DType dtype) {
  const int64_t element = size_of(dtype);
  const int64_t piece = slot_bytes_ / kCacheLine / size_ * kCacheLine / element;
  for (int64_t begin = 0; begin < count; begin += piece) {
    const int64_t length = std::min(piece, count - begin);
    for (int part = 0; part < size_; ++part) {
      std::memcpy(my_slot() + part * piece * element, input + (part * count + begin) * element,
                  static_cast<size_t>(length * element));
    }
    meet();
    reduce_in_rank_order(sources_at(rank_ * piece * element), output + begin * element, length, dtype, ReduceKind::sum);
    parity_ ^= 1;
  }
}

}  // namespace

std::unique_ptr<Reducer> make_window_reducer(MPI_Comm comm, int64_t piece_bytes) {
  return std::make_unique<WindowReducer>(comm, piece_bytes);
}

}  // namespace foresail
