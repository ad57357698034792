// One writer per folder: a lock that the kernel releases when its process ends, however it ends. Nothing is left on disk.
#pragma once

#include <filesystem>
#include <utility>

namespace foresail {

class FolderLock {
 public:
  FolderLock() = default;  ///< holds nothing
  /// Waits a moment for a holder that is just dying. Throws bad_input while another process holds the folder. File systems
  /// that know no locks are not guarded.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FolderLock& operator=(FolderLock&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  bool held() const { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

}  // namespace foresail
