#include "runtime/executor/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include <fmt/format.h>

#include "core/error.h"
#include "runtime/executor/resident.h"

namespace foresail {
namespace {

constexpr int64_t kHugePageBytes = int64_t{2} << 20;

[[noreturn]] void fail(int64_t bytes, const std::string& cause) {
  throw_environment(fmt::format("arena of {} bytes", bytes), cause,
                    "plan with a smaller --memory, a smaller micro-batch or more devices");
}

int64_t mapped_bytes(int64_t bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  return (std::max<int64_t>(bytes, 1) + page - 1) / page * page;
}

/// An anonymous mapping that starts at a multiple of `alignment`: maps more, gives the ends back.
std::byte* map_aligned(int64_t bytes, int64_t alignment) {
  const int64_t total = bytes + alignment;
  void* raw = mmap(nullptr, static_cast<size_t>(total), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) fail(bytes, std::strerror(errno));
  auto* begin = static_cast<std::byte*>(raw);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const auto head = static_cast<int64_t>((alignment - address % alignment) % alignment);
  if (head > 0) munmap(begin, static_cast<size_t>(head));
  if (const int64_t tail = total - head - bytes; tail > 0) munmap(begin + head + bytes, static_cast<size_t>(tail));
  return begin + head;
}

}  // namespace

Arena::Arena(int64_t bytes) : bytes_(bytes) {
  if (bytes < 0) fail(bytes, "the size is negative");
  // Linux grants more than it has and kills the process at the first touch; asking first gives a message instead.
  if (const int64_t available = available_memory_bytes(); bytes > available) {
    fail(bytes, fmt::format("only {} bytes of memory are available", available));
  }
  const int64_t mapped = mapped_bytes(bytes);
  const bool huge = mapped >= kHugePageBytes;
  data_ = map_aligned(mapped, huge ? kHugePageBytes : sysconf(_SC_PAGESIZE));
  if (huge) madvise(data_, static_cast<size_t>(mapped), MADV_HUGEPAGE);  // advice: fewer TLB misses, no error if absent
  const int64_t page = sysconf(_SC_PAGESIZE);
  for (int64_t at = 0; at < mapped; at += page) *reinterpret_cast<volatile char*>(data_ + at) = 0;
}

Arena::~Arena() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(mapped_bytes(bytes_)));
}

}  // namespace foresail
