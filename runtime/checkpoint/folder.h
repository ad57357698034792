// The folder RUN/checkpoints: step-N are complete checkpoints, everything else is in the making (step-N.tmp) or set aside
// (step-N.damaged, step-N.superseded). Only rank 0 changes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace foresail {

std::filesystem::path checkpoints_folder(const std::filesystem::path& run);
std::filesystem::path checkpoint_path(const std::filesystem::path& folder, int64_t step);
/// "step-120" -> 120; nothing for other names.
std::optional<int64_t> step_of(const std::string& name);

struct CheckpointEntry {
  int64_t step = 0;
  std::filesystem::path path;
  bool complete = false;  ///< a valid manifest, and every data file with its size
  std::string problem;    ///< why not
  int64_t bytes = 0;      ///< of the data files
};

/// Throws bad_input if a person named a run (or checkpoints) folder that does not exist or is a file.
void require_run_folder(const std::filesystem::path& folder);

/// Every step-N of a run's checkpoints folder (or of the run folder that holds it), ascending; empty if it does not exist.
std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& folder);
std::string checkpoint_list_to_json(const std::vector<CheckpointEntry>& entries);

/// The complete checkpoint of the highest step. Incomplete ones are passed over with a warning in the log.
std::optional<CheckpointEntry> latest_complete(const std::filesystem::path& run);
/// Whether the run ever finished a checkpoint, be it damaged or set aside by now. Such a run must not start from nothing.
bool holds_checkpoints(const std::filesystem::path& run);
/// What `--resume` (no step) or `--resume=step-N` means. Throws bad_input listing what there is.
CheckpointEntry checkpoint_to_resume(const std::filesystem::path& run, std::optional<int64_t> step);

/// Removes what interrupted writers left: step-*.tmp. Throws environment_failed.
void remove_leftovers(const std::filesystem::path& folder);
/// Renames the finished folder to its name, replacing an older one of that name in one step, and syncs.
void publish_checkpoint(const std::filesystem::path& aside, const std::filesystem::path& target);
/// Removes all but the `keep` newest complete checkpoints, and superseded ones. Incomplete and damaged ones stay for
/// inspection. Never removes the newest complete one.
void prune_checkpoints(const std::filesystem::path& folder, int64_t keep);
/// Renames every step-M with M > `step` to step-M.superseded: a run that resumes from an older checkpoint must not find
/// the newer ones of its former life later on.
void set_aside_after(const std::filesystem::path& folder, int64_t step);

}  // namespace foresail
