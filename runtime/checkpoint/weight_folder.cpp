#include "runtime/checkpoint/weight_folder.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "runtime/checkpoint/manifest.h"

namespace foresail {
namespace {

constexpr int64_t kJsonLimitBytes = int64_t{1} << 28;
constexpr const char* kMend = "fetch or write the weights again, all files together";

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

[[noreturn]] void refuse_without_weights(const std::filesystem::path& folder) {
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    const bool exists = std::filesystem::exists(folder, error);
    throw_bad_input(folder.string(), exists ? "it is a file, not a folder of weights" : "there is no such folder",
                    "name a folder with config.json and model.safetensors");
  }
  for (const char* other : {"pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack"}) {
    if (!is_there(folder / other)) continue;
    throw_bad_input((folder / other).string(), "weights of this format are not read",
                    "save them as safetensors: save_pretrained(..., safe_serialization=True)");
  }
  throw_bad_input(folder.string(), fmt::format("has neither {} nor {}", kWeightFileName, kWeightIndexName),
                  "name a folder with config.json and safetensors, or a step-N folder of a run");
}

}  // namespace

bool holds_weights(const std::filesystem::path& folder) {
  return is_there(folder / kWeightFileName) || is_there(folder / kWeightIndexName);
}

std::string WeightFolder::Place::what() const {
  return fmt::format("{}: tensor '{}'", file->path().string(), entry->name);
}

void WeightFolder::add_file(const std::string& name) {
  files_.push_back(std::make_unique<SafetensorsFile>(path_ / name));
  const SafetensorsFile& file = *files_.back();
  for (const TensorEntry& entry : file.tensors()) {
    const auto [at, added] = tensors_.try_emplace(entry.name, Place{&file, &entry});
    if (added) continue;
    throw_bad_input((path_ / name).string(),
                    fmt::format("tensor '{}' is in {} too", entry.name, at->second.file->path().filename().string()),
                    kMend);
  }
}

void WeightFolder::add_indexed_files() {
  const WeightIndex index = weight_index_from_json(read_file(list_, kJsonLimitBytes), list_.string());
  std::set<std::string> files;
  for (const auto& [tensor, file] : index.files) {
    if (!is_plain_file_name(file)) {
      throw_bad_input(list_.string(), fmt::format("file name '{}' of tensor '{}' is not plain", file, tensor), kMend);
    }
    files.insert(file);
  }
  // Left over from another download or save: which of the two is meant is not ours to guess.
  if (is_there(path_ / kWeightFileName) && files.count(kWeightFileName) == 0) {
    throw_bad_input(list_.string(), fmt::format("{} lies beside it, but is not in it", kWeightFileName),
                    "remove the one that does not belong to these weights");
  }
  for (const std::string& file : files) {
    if (!is_there(path_ / file))
      throw_bad_input(list_.string(), fmt::format("names {}, which is not there", file), kMend);
  }
  for (const std::string& file : files) add_file(file);
  for (const auto& [tensor, file] : index.files) {
    const auto found = tensors_.find(tensor);
    if (found != tensors_.end() && found->second.file->path().filename() == file) continue;
    throw_bad_input((path_ / file).string(),
                    fmt::format("has no tensor '{}', which {} says it has", tensor, kWeightIndexName), kMend);
  }
  for (const auto& [tensor, place] : tensors_) {
    if (index.files.count(tensor) != 0) continue;
    throw_bad_input(place.what(), fmt::format("is not in {}", kWeightIndexName), kMend);
  }
}

WeightFolder::WeightFolder(const std::filesystem::path& folder) : path_(folder), list_(folder / kWeightFileName) {
  if (!holds_weights(folder)) refuse_without_weights(folder);
  if (is_there(folder / kModelConfigName)) config_ = read_file(folder / kModelConfigName, kJsonLimitBytes);
  if (is_there(folder / kWeightIndexName)) {
    list_ = folder / kWeightIndexName;
    add_indexed_files();
  } else {
    add_file(kWeightFileName);
  }
}

}  // namespace foresail
