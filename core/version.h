// What this binary is: for `foresail --version`, plans and checkpoints. Rooms that wrap a library name its version themselves.
#pragma once

#include <string>

namespace foresail {

struct BuildInfo {
  std::string version;     ///< "0.1.0"
  std::string git;         ///< `git describe` of the source when it was configured; "unknown" outside of a checkout
  std::string compiler;    ///< "GNU 12.2.0"
  std::string build_type;  ///< "Release"
};

BuildInfo build_info();

/// "0.1.0 (git 63b7f70, GNU 12.2.0, Release)".
std::string version_text();

}  // namespace foresail
