#include <fnmatch.h>

#include <algorithm>
#include <functional>

#include "core/error.h"
#include "runtime/data/shard_dataset.h"

namespace foresail {
namespace {

enum class Role : uint8_t { none, training, validation };

/// By the habit of llm.c's writers: NAME_train.bin, NAME_train_000001.bin, NAME_val_000000.bin.
Role role_of(const std::filesystem::path& path) {
  const std::string stem = "_" + path.stem().string() + "_";
  if (stem.find("_train_") != std::string::npos) return Role::training;
  return stem.find("_val_") != std::string::npos ? Role::validation : Role::none;
}

bool is_bin(const std::string& name) { return std::filesystem::path(name).extension() == ".bin"; }

using Accept = std::function<bool(const std::string& name)>;

/// Files of a folder whose names are accepted, sorted. A shard that is no file (a link to nothing, a folder) is refused: data
/// that somebody meant to be read would be left out.
std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder, const Accept& accept) {
  std::vector<std::filesystem::path> found;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder.empty() ? "." : folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    const std::string name = entry->path().filename().string();
    if (!accept(name)) continue;
    if (!entry->is_regular_file(ignored)) {
      if (!is_bin(name)) continue;
      throw_bad_input(entry->path().string(),
                      "it has the name of a data file and is none (a link to nothing, a folder)", "mend or remove it");
    }
    found.push_back(folder.empty() ? entry->path().filename() : entry->path());
  }
  if (error) return {};  // no such folder: no such files
  std::sort(found.begin(), found.end());
  return found;
}

/// What stands between a prefix and ".bin" in the name of one of its shards.
bool is_shard_suffix(const std::string& suffix) {
  if (suffix.empty() || suffix.starts_with("_train") || suffix.starts_with("_val")) return true;
  return suffix.size() > 1 && suffix[0] == '_' && suffix.find_first_not_of("0123456789", 1) == std::string::npos;
}

std::vector<std::filesystem::path> files_of_folder(const std::filesystem::path& folder) {
  const auto indices = files_in(folder, [](const std::string& name) { return name.ends_with(".idx"); });
  if (!indices.empty()) {
    throw_bad_input(folder.string(), "the folder holds datasets with an index ('" + indices.front().string() + "')",
                    "name one of them by its prefix, the path without .idx");
  }
  const auto found = files_in(folder, is_bin);
  if (found.empty()) throw_bad_input(folder.string(), "the folder holds no .bin file", "name a folder of token shards");
  return found;
}

std::vector<std::filesystem::path> files_named(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return files_of_folder(path);
  if (std::filesystem::is_regular_file(path, error)) return {path};
  const std::string name = path.filename().string();
  if (name.empty()) return {};
  if (name.find('*') != std::string::npos) {
    const auto found = files_in(path.parent_path(), [&](const std::string& other) {
      return ::fnmatch(name.c_str(), other.c_str(), FNM_PERIOD) == 0;
    });
    if (found.empty()) throw_bad_input(path.string(), "no file has such a name", "check the folder and the pattern");
    return found;
  }
  constexpr size_t kEnding = 4;  // ".bin"
  auto found = files_in(path.parent_path(), [&](const std::string& other) {
    return is_bin(other) && other.starts_with(name) && other.size() >= name.size() + kEnding &&
           is_shard_suffix(other.substr(name.size(), other.size() - name.size() - kEnding));
  });
  // PREFIX.bin alone may be half of an IndexedDataset whose index is missing; its content tells.
  if (found.size() == 1 && found.front().stem() == name && !is_shard(found.front())) found.clear();
  return found;
}

}  // namespace

ShardFiles find_shards(const std::filesystem::path& path) {
  const auto found = files_named(path);
  ShardFiles files;
  std::vector<std::filesystem::path> others;
  for (const auto& file : found) {
    const Role role = role_of(file);
    auto& list = role == Role::training ? files.training : role == Role::validation ? files.validation : others;
    list.push_back(file);
  }
  if (!others.empty() && others.size() != found.size()) {
    throw_bad_input(others.front().string(),
                    "its name says neither train nor val, as those of other shards in '" + path.string() + "' do",
                    "move it away, or name the shards by a pattern such as 'NAME_train_*.bin'");
  }
  if (files.training.empty() || files.validation.empty()) return {found, {}};
  return files;
}

}  // namespace foresail
