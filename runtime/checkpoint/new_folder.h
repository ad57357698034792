// A folder that appears complete or not at all: written aside, synced, renamed.
#pragma once

#include <filesystem>

#include "runtime/io/posix_file.h"

namespace foresail {

class NewFolder {
 public:
  /// Creates the folder aside (and the parents of `path`). Throws bad_input if `path` is a file or holds something.
  explicit NewFolder(const std::filesystem::path& path);
  /// Where its files are written until then.
  const std::filesystem::path& aside() const { return aside_; }
  void publish();

 private:
  std::filesystem::path path_, aside_;
  RemoveOnFailure cleanup_;
};

}  // namespace foresail
