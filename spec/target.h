// What compilation must know about the back end: alignment, threads, kernel choices, workspace, how queues behave.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace foresail {

struct Target {
  std::string back_end = "cpu";  ///< "cpu", "reference" or "catalogue" (planned only)
  int64_t alignment = 64;        ///< bytes; every buffer starts at a multiple
  int32_t threads = 1;           ///< per rank; workspace may depend on it
  bool unfused_attention = false;
  bool fused_kernels = true;  ///< false: every op of the graph by itself
  /// Collectives and receives run on the compute queue (a library without progress of its own) instead of beside it.
  bool blocking_communication = true;
  /// Workspace a library asked for, by op signature; ops not listed need none beyond the op table's rule.
  std::map<std::string, int64_t> workspace_bytes;
  /// Measured or bounded memory outside the arena (context, libraries, code) and its uncertainty.
  int64_t framework_bytes = 0, framework_bytes_spread = 0;
};

std::string target_to_json(const Target& target);
Target target_from_json(const std::string& text, const std::string& source);

}  // namespace foresail
