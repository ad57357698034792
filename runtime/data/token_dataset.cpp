#include "runtime/data/token_dataset.h"

#include "core/error.h"
#include "runtime/data/indexed_dataset.h"
#include "runtime/data/shard_dataset.h"

namespace foresail {
namespace {

bool is_file(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

/// The prefix of the two files of an IndexedDataset that `path` names, if it does: by prefix or by one of the files.
std::optional<std::filesystem::path> indexed_prefix(const std::filesystem::path& path) {
  if (is_file(idx_path(path))) return path;
  if (!is_file(path) || (path.extension() != ".bin" && path.extension() != ".idx")) return std::nullopt;
  std::filesystem::path prefix = path;
  prefix.replace_extension();
  return is_file(idx_path(prefix)) ? std::optional(prefix) : std::nullopt;
}

}  // namespace

DatasetPlace locate_dataset(const std::filesystem::path& path) {
  if (const auto prefix = indexed_prefix(path)) return {path, prefix, {}};
  if (ShardFiles files = find_shards(path); !files.training.empty()) return {path, std::nullopt, std::move(files)};
  // Half of a dataset: its reader says which file is missing.
  if (is_file(bin_path(path))) return {path, path, {}};
  throw_bad_input(path.string(), "no dataset is there",
                  "give the prefix of a .bin and an .idx file, or a token shard of llm.c, a folder or a pattern "
                  "('FOLDER/NAME_train_*.bin') of them");
}

std::unique_ptr<TokenDataset> open_dataset(const DatasetPlace& place) {
  if (place.indexed) return std::make_unique<IndexedDataset>(*place.indexed);
  return std::make_unique<ShardDataset>(place.name, place.shards);
}

}  // namespace foresail
