#include "tests/executor/allocation_counter.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> count{0}, freed{0};

void release(void* memory) {
  if (memory == nullptr) return;
  ++freed;
  std::free(memory);
}

void* counted(std::size_t bytes, std::size_t alignment) {
  ++count;
  void* memory = nullptr;
  if (alignment <= sizeof(void*))
    memory = std::malloc(bytes == 0 ? 1 : bytes);
  else if (posix_memalign(&memory, alignment, bytes) != 0)
    memory = nullptr;
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* nothrow(std::size_t bytes) {
  ++count;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, 0); }
void* operator new[](std::size_t bytes) { return counted(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return counted(bytes, static_cast<std::size_t>(alignment));
}
// std::stable_sort and others ask without wanting an exception; libstdc++'s own would not pair with the deletes below.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return nothrow(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return nothrow(bytes); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }

namespace foresail::testing {
int64_t allocations() { return count.load(); }
int64_t outstanding_allocations() { return count.load() - freed.load(); }
}  // namespace foresail::testing
