// Files that appear whole or not at all, with errors that name the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace foresail {

/// The whole file as bytes. Throws bad_input if it is missing, a folder, unreadable or larger than `limit_bytes`.
std::string read_file(const std::filesystem::path& path, int64_t limit_bytes = int64_t{1} << 30);

/// Writes aside (`path` + ".tmp"), fsyncs, renames over `path` (over the end of a symbolic link), fsyncs the folder. Throws
/// bad_input for a path that cannot be such a file (no such folder, a folder, a device, no permission) and
/// environment_failed for a disk that fails; the old file, if any, is untouched then.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// What write_file_atomically would refuse, said before long work. Creates nothing.
void require_writable_file(const std::filesystem::path& path);

/// What create_folder would refuse or what could not be written in it, said before long work. Creates nothing.
void require_creatable_folder(const std::filesystem::path& path);

/// Creates the folder and its parents. Throws bad_input if the path cannot be one, environment_failed if the disk fails.
void create_folder(const std::filesystem::path& path);

/// fsync of a file or a folder by path. Throws environment_failed.
void sync_path(const std::filesystem::path& path);

}  // namespace foresail
