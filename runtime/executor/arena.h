// The one allocation of a run: every buffer of every Program of a set lives at a fixed offset in it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace foresail {

class Arena {
 public:
  /// Maps `bytes` of zeroed memory, aligned to a page, and touches every page, so that the first step pays no faults.
  /// Throws environment_failed naming the size and what is available.
  explicit Arena(int64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace foresail
