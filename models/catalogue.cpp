// Models by name or by path. The catalogue's files (models/catalogue/*.json) are compiled into the binary.
#include <algorithm>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/file.h"
#include "models/model_spec.h"

namespace foresail {

std::span<const std::pair<std::string_view, std::string_view>> model_catalogue_files();  // cmake/EmbedFiles.cmake

namespace {

constexpr int64_t kConfigBytesLimit = 16 << 20;

}  // namespace

std::vector<std::string> catalogue_model_names() {
  std::vector<std::string> names;
  for (const auto& [name, content] : model_catalogue_files()) names.emplace_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

ModelSpec load_model(const std::string& name_or_path) {
  for (const auto& [name, content] : model_catalogue_files()) {
    if (name != name_or_path) continue;
    ModelSpec model = parse_model_config(std::string(content), "catalogue model " + name_or_path);
    model.name = name;
    return model;
  }
  std::filesystem::path path(name_or_path);
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) path /= "config.json";
  if (name_or_path.empty() || !std::filesystem::exists(path, error)) {
    throw_bad_input(fmt::format("model '{}'", name_or_path),
                    path == name_or_path ? "is neither a catalogue name nor a file" : "is a folder without config.json",
                    fmt::format("give a path to a config.json or one of {}", fmt::join(catalogue_model_names(), ", ")));
  }
  return parse_model_config(read_file(path, kConfigBytesLimit), path.string());
}

}  // namespace foresail
