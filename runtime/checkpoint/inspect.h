// What people ask of checkpoints: are they sound, and how do two of them differ.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace foresail {

/// A run's folder in place of one of its checkpoints is a slip of the user, not damage: bad_input that says so, as for a
/// path that is no folder.
void require_checkpoint(const std::filesystem::path& path);

struct CheckpointVerdict {
  std::string path;
  int64_t step = -1;                  ///< -1: no readable manifest
  bool sealed = true;                 ///< false: it holds no digests, so nothing can be verified
  int64_t tensors = 0, bytes = 0;     ///< verified
  std::vector<std::string> problems;  ///< one line each, naming file and tensor; empty: sound
  bool passed() const { return problems.empty(); }
};

/// Reads every byte of a step-N folder. A path that does not exist, or is the folder of a run, is bad_input; damage is a
/// problem in the verdict.
CheckpointVerdict verify_checkpoint(const std::filesystem::path& path);

/// Verifies every step-N of a run (or checkpoints) folder; renames damaged ones to step-N.damaged, so that no resume takes
/// them. One without digests stays.
std::vector<CheckpointVerdict> scrub_checkpoints(const std::filesystem::path& folder);

struct TensorDifference {
  std::string tensor;      ///< with its quantity's suffix
  bool identical = false;  ///< same dtype and same bits
  bool only_in_first = false, only_in_second = false, shapes_differ = false;
  double maximum_absolute = 0;
  double maximum_relative = 0;  ///< |a - b| / max(|a|, |b|), 0 where both are 0
};

struct CheckpointDifference {
  bool identical = true;  ///< every tensor
  double maximum_absolute = 0, maximum_relative = 0;
  std::vector<TensorDifference> tensors;
};

/// Of all quantities, whatever plans wrote them. NaN against a number counts as infinite. Throws bad_input on damage.
CheckpointDifference diff_checkpoints(const std::filesystem::path& first, const std::filesystem::path& second);

std::string checkpoint_verdicts_to_json(const std::vector<CheckpointVerdict>& verdicts);
std::string checkpoint_difference_to_json(const CheckpointDifference& difference);

}  // namespace foresail
