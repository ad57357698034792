#include "runtime/checkpoint/folder.h"

#include <fcntl.h>
#include <stdio.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <system_error>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/io/posix_file.h"

namespace foresail {
namespace {

constexpr std::string_view kPrefix = "step-";

std::vector<std::filesystem::path> children(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> result;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    result.push_back(at->path());
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory) {
    throw_environment(folder.string(), "cannot list: " + error.message(), "check its permissions");
  }
  std::sort(result.begin(), result.end());
  return result;
}

void remove_tree(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) throw_environment(path.string(), "cannot remove: " + error.message(), "check its permissions");
}

bool starts_and_ends(const std::filesystem::path& path, std::string_view ending) {
  const std::string name = path.filename().string();
  return name.starts_with(kPrefix) && name.ends_with(ending);
}

CheckpointEntry entry_of(const std::filesystem::path& path, int64_t step) {
  CheckpointEntry entry{step, path, false, {}, 0};
  try {
    const Checkpoint checkpoint(path);
    checkpoint.check_files();
    entry.bytes = checkpoint.manifest().data_bytes();
    if (checkpoint.state().step != step) {
      throw_bad_input(path.string(), "holds step " + std::to_string(checkpoint.state().step), "rename it to its step");
    }
    entry.complete = true;
  } catch (const Error& error) {
    entry.problem = error.thing() == path.string() ? error.cause() : error.thing() + ": " + error.cause();
  }
  return entry;
}

// A checkpoint vanishes by losing its name first, so that no half-removed folder looks like one.
void remove_checkpoint(const std::filesystem::path& path) {
  const std::filesystem::path doomed = path.string() + ".removed.tmp";
  rename_and_sync(path, doomed);
  remove_tree(doomed);
}

}  // namespace

std::filesystem::path checkpoints_folder(const std::filesystem::path& run) { return run / "checkpoints"; }

std::filesystem::path checkpoint_path(const std::filesystem::path& folder, int64_t step) {
  return folder / (std::string(kPrefix) + std::to_string(step));
}

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = std::string_view(name).substr(kPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool canonical = error == std::errc() && end == digits.data() + digits.size() && step >= 0;
  return canonical && std::to_string(step) == digits ? std::optional(step) : std::nullopt;
}

void require_run_folder(const std::filesystem::path& folder) {
  std::error_code error;
  if (std::filesystem::is_directory(folder, error)) return;
  const bool exists = std::filesystem::exists(folder, error);
  throw_bad_input(folder.string(), exists ? "it is a file, not the folder of a run" : "there is no such folder",
                  "name a run's folder, or its checkpoints folder");
}

std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& folder) {
  std::error_code error;
  const bool is_run = std::filesystem::is_directory(checkpoints_folder(folder), error);
  std::vector<CheckpointEntry> entries;
  for (const auto& path : children(is_run ? checkpoints_folder(folder) : folder)) {
    const auto step = step_of(path.filename().string());
    if (step) entries.push_back(entry_of(path, *step));
  }
  std::sort(entries.begin(), entries.end(), [](const auto& left, const auto& right) { return left.step < right.step; });
  return entries;
}

std::optional<CheckpointEntry> latest_complete(const std::filesystem::path& run) {
  const std::vector<CheckpointEntry> entries = list_checkpoints(run);
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (entry->complete) return *entry;
    log_warning("{}: passed over: {}", entry->path.string(), entry->problem);
  }
  return std::nullopt;
}

bool holds_checkpoints(const std::filesystem::path& run) {
  const auto paths = children(checkpoints_folder(run));
  return std::any_of(paths.begin(), paths.end(), [](const std::filesystem::path& path) {
    return starts_and_ends(path, "") && !starts_and_ends(path, ".tmp");
  });
}

CheckpointEntry checkpoint_to_resume(const std::filesystem::path& run, std::optional<int64_t> step) {
  if (!step) {
    if (const auto latest = latest_complete(run)) return *latest;
    const std::vector<CheckpointEntry> entries = list_checkpoints(run);
    throw_bad_input(checkpoints_folder(run).string(),
                    "holds no complete checkpoint" + (entries.empty() ? "" : ": " + entries.back().problem),
                    "bring a complete one back, or start again in another folder");
  }
  std::string known;
  for (const CheckpointEntry& entry : list_checkpoints(run)) {
    if (entry.step == *step && entry.complete) return entry;
    if (entry.step == *step) throw_bad_input(entry.path.string(), entry.problem, "resume from another checkpoint");
    known += (known.empty() ? "step-" : ", step-") + std::to_string(entry.step);
  }
  throw_bad_input(run.string(), "has no checkpoint of step " + std::to_string(*step),
                  known.empty() ? "train without --resume" : "choose one of " + known);
}

void remove_leftovers(const std::filesystem::path& folder) {
  for (const auto& path : children(folder)) {
    if (starts_and_ends(path, ".tmp")) remove_tree(path);
  }
}

void publish_checkpoint(const std::filesystem::path& aside, const std::filesystem::path& target) {
  std::error_code error;
  if (!std::filesystem::exists(target, error)) return rename_and_sync(aside, target);
  // Exchanging the two names leaves no moment without a checkpoint; file systems that cannot do it need two renames.
  if (::renameat2(AT_FDCWD, aside.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) != 0) {
    const std::filesystem::path old = target.string() + ".old.tmp";
    rename_and_sync(target, old);
    rename_and_sync(aside, target);
    return remove_tree(old);
  }
  sync_path(target.parent_path());
  remove_tree(aside);
}

void prune_checkpoints(const std::filesystem::path& folder, int64_t keep) {
  ensure(keep >= 1, "at least one checkpoint is kept");
  const std::vector<CheckpointEntry> entries = list_checkpoints(folder);
  int64_t seen = 0;
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    if (entry->complete && ++seen > keep) remove_checkpoint(entry->path);
  }
  if (seen == 0) return;
  for (const auto& path : children(folder)) {
    if (starts_and_ends(path, ".superseded")) remove_checkpoint(path);
  }
}

void set_aside_after(const std::filesystem::path& folder, int64_t step) {
  for (const auto& path : children(folder)) {
    const auto found = step_of(path.filename().string());
    if (!found || *found <= step) continue;
    const std::filesystem::path aside = path.string() + ".superseded";
    remove_tree(aside);
    rename_and_sync(path, aside);
  }
}

}  // namespace foresail
