// Machines and stacks that are known by name. Their JSON files (spec/machines, spec/stacks) are compiled in, so that a
// build tree and an installed binary find them alike.
#include <algorithm>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "spec/machine.h"

namespace foresail {

using EmbeddedFiles = std::span<const std::pair<std::string_view, std::string_view>>;  // (name, content)
EmbeddedFiles embedded_machines();
EmbeddedFiles embedded_stacks();

namespace {

std::vector<std::string> names_of(EmbeddedFiles files) {
  std::vector<std::string> names;
  for (const auto& [name, content] : files) names.emplace_back(name);
  return names;
}

/// The text behind a catalogue name or a path, and what errors call it. A catalogue name wins over a file of that name.
std::pair<std::string, std::string> text_of(const std::string& what, const std::string& name_or_path,
                                            EmbeddedFiles files) {
  for (const auto& [name, content] : files) {
    if (name == name_or_path) return {std::string(content), what + " " + name_or_path};
  }
  std::error_code ignored;
  const bool looks_like_path = name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".json");
  if (!looks_like_path && !std::filesystem::exists(name_or_path, ignored)) {
    throw_bad_input(what + " '" + name_or_path + "'", "is neither in the catalogue nor a file",
                    fmt::format("use a path or one of: {}", fmt::join(names_of(files), ", ")));
  }
  return {read_file(name_or_path), name_or_path};
}

}  // namespace

std::vector<std::string> catalogue_machine_names() { return names_of(embedded_machines()); }
std::vector<std::string> catalogue_stack_names() { return names_of(embedded_stacks()); }

Machine load_machine(const std::string& name_or_path) {
  const auto [text, source] = text_of("machine", name_or_path, embedded_machines());
  return machine_from_json(text, source);
}

Stack load_stack(const std::string& name_or_path) {
  const auto [text, source] = text_of("stack", name_or_path, embedded_stacks());
  return stack_from_json(text, source);
}

}  // namespace foresail
