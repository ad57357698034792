#include "runtime/checkpoint/new_folder.h"

#include "core/error.h"
#include "core/file.h"

namespace foresail {
namespace {

/// Without a slash at the end and with links resolved: the name that is renamed to.
std::filesystem::path name_of(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path whole = std::filesystem::weakly_canonical(path, error);
  if (error) whole = path.lexically_normal();
  return whole.has_filename() ? whole : whole.parent_path();
}

void require_new(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return require_creatable_folder(path);
  if (!std::filesystem::is_directory(path, error)) {
    throw_bad_input(path.string(), "it is a file", "name a new or an empty folder");
  }
  if (!std::filesystem::is_empty(path, error)) {
    throw_bad_input(path.string(), "it is not empty", "name a new or an empty folder");
  }
}

/// What another attempt left there is ours.
std::filesystem::path emptied(const std::filesystem::path& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
  return path;
}

}  // namespace

NewFolder::NewFolder(const std::filesystem::path& path)
    : path_((require_new(path), name_of(path))), aside_(path_.string() + ".foresail.tmp"), cleanup_(emptied(aside_)) {
  create_folder(aside_);
}

void NewFolder::publish() {
  sync_path(aside_);
  rename_and_sync(aside_, path_);
  cleanup_.release();
}

}  // namespace foresail
