// Files by descriptor: reads and writes at offsets, append, mapping; every failure names the file. Reading trouble is
// bad_input when the file itself is wrong (missing, too short) and environment_failed when the machine is; a full disk is
// environment_failed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace foresail {

/// Owns one descriptor. Movable; closing in the destructor ignores errors, so writers call sync() or close().
class PosixFile {
 public:
  PosixFile() = default;
  /// Throws bad_input if the path is missing, not a regular file, or not readable.
  static PosixFile open_to_read(const std::filesystem::path& path);
  /// Creates or truncates. Throws environment_failed.
  static PosixFile create(const std::filesystem::path& path);
  /// Opens for writing at the end; creates if missing. Throws environment_failed.
  static PosixFile open_to_append(const std::filesystem::path& path);

  ~PosixFile();
  PosixFile(PosixFile&& other) noexcept;
  PosixFile& operator=(PosixFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  int64_t size() const;
  /// Fills `out` from `offset`. Throws bad_input if the file ends before.
  void read_at(int64_t offset, std::span<std::byte> out) const;
  /// Up to out.size() bytes from `offset`; fewer only at the end of the file.
  int64_t read_some_at(int64_t offset, std::span<std::byte> out) const;
  void write_at(int64_t offset, std::span<const std::byte> bytes);
  /// Writes at the current position (the end, when opened to append).
  void append(std::span<const std::byte> bytes);
  void append(std::string_view text) { append(std::as_bytes(std::span(text))); }
  void truncate(int64_t bytes);
  void sync();
  void close();

 private:
  PosixFile(int descriptor, std::filesystem::path path) : descriptor_(descriptor), path_(std::move(path)) {}

  int descriptor_ = -1;
  std::filesystem::path path_;
};

/// A whole file mapped read-only. An empty file maps to an empty span.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(size_)}; }
  const std::filesystem::path& path() const { return path_; }

 private:
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
  std::filesystem::path path_;
};

/// Renames and syncs the folder that holds `to`. Throws environment_failed.
void rename_and_sync(const std::filesystem::path& from, const std::filesystem::path& to);

/// Removes files that a failed writer leaves behind, unless release() was called. Errors while removing are ignored.
class RemoveOnFailure {
 public:
  explicit RemoveOnFailure(std::filesystem::path path) : path_(std::move(path)) {}
  ~RemoveOnFailure();
  RemoveOnFailure(const RemoveOnFailure&) = delete;
  RemoveOnFailure& operator=(const RemoveOnFailure&) = delete;
  void release() { path_.clear(); }

 private:
  std::filesystem::path path_;
};

}  // namespace foresail
