// Counts the allocations of this process. In a file of its own, so that the compiler cannot see into the replacements.
#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/kernels/cpu_cases.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

void* operator new(size_t bytes) {
  ++allocations;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace foresail::kernel_tests {

int64_t allocations_so_far() { return allocations; }

}  // namespace foresail::kernel_tests
