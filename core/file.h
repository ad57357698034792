// Files that appear whole or not at all, with errors that name the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace foresail {

/// The whole file as bytes. Throws bad_input if it is missing, a folder, unreadable or larger than `limit_bytes`.
std::string read_file(const std::filesystem::path& path, int64_t limit_bytes = int64_t{1} << 30);

/// Writes aside (`path` + ".tmp"), fsyncs, renames over `path`, fsyncs the folder. Throws environment_failed; the old
/// file, if any, is untouched then.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// Creates the folder and its parents. Throws environment_failed.
void create_folder(const std::filesystem::path& path);

/// fsync of a file or a folder by path. Throws environment_failed.
void sync_path(const std::filesystem::path& path);

}  // namespace foresail
