#include "runtime/io/posix_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "core/error.h"
#include "core/file.h"

namespace foresail {
namespace {

[[noreturn]] void fail_writing(const std::filesystem::path& path, const char* action, int code) {
  const bool full = code == ENOSPC || code == EDQUOT || code == EFBIG;
  throw_environment(
      path.string(), std::string("cannot ") + action + ": " + std::strerror(code),
      full ? "free space on that disk, or choose another folder" : "check the folder and its permissions");
}

[[noreturn]] void fail_reading(const std::filesystem::path& path, int code) {
  throw_environment(path.string(), std::string("cannot read: ") + std::strerror(code), "check the disk that holds it");
}

int open_to_write(const std::filesystem::path& path, int flags) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0644);
  if (descriptor < 0) fail_writing(path, "create", errno);
  return descriptor;
}

}  // namespace

PosixFile PosixFile::open_to_read(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a named pipe must not hang; the check for a regular file refuses it.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    throw_bad_input(path.string(), std::string("cannot open: ") + std::strerror(errno), "check the path");
  }
  PosixFile file(descriptor, path);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) fail_reading(path, errno);
  if (!S_ISREG(status.st_mode)) throw_bad_input(path.string(), "is not a regular file", "give the path of a file");
  return file;
}

PosixFile PosixFile::create(const std::filesystem::path& path) { return PosixFile(open_to_write(path, O_TRUNC), path); }

PosixFile PosixFile::open_to_append(const std::filesystem::path& path) {
  return PosixFile(open_to_write(path, O_APPEND), path);
}

PosixFile::~PosixFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

PosixFile::PosixFile(PosixFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

PosixFile& PosixFile::operator=(PosixFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

int64_t PosixFile::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) fail_reading(path_, errno);
  return status.st_size;
}

int64_t PosixFile::read_some_at(int64_t offset, std::span<std::byte> out) const {
  int64_t done = 0;
  const int64_t wanted = std::ssize(out);
  while (done < wanted) {
    const ssize_t got = ::pread(descriptor_, out.data() + done, static_cast<size_t>(wanted - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_reading(path_, errno);
    if (got == 0) break;
    done += got;
  }
  return done;
}

void PosixFile::read_at(int64_t offset, std::span<std::byte> out) const {
  const int64_t got = read_some_at(offset, out);
  if (got == std::ssize(out)) return;
  throw_bad_input(
      path_.string(),
      "ends at byte " + std::to_string(offset + got) + ", expected " + std::to_string(offset + std::ssize(out)),
      "the file is truncated: restore it or write it again");
}

void PosixFile::write_at(int64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) fail_writing(path_, "write", errno);
    bytes = bytes.subspan(static_cast<size_t>(wrote));
    offset += wrote;
  }
}

void PosixFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(descriptor_, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) fail_writing(path_, "write", errno);
    bytes = bytes.subspan(static_cast<size_t>(wrote));
  }
}

void PosixFile::truncate(int64_t bytes) {
  if (::ftruncate(descriptor_, bytes) != 0) fail_writing(path_, "resize", errno);
}

void PosixFile::sync() {
  if (::fsync(descriptor_) != 0) fail_writing(path_, "sync", errno);
}

void PosixFile::close() {
  const int descriptor = std::exchange(descriptor_, -1);
  if (descriptor >= 0 && ::close(descriptor) != 0 && errno != EINTR) fail_writing(path_, "close", errno);
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const PosixFile file = PosixFile::open_to_read(path);
  size_ = file.size();
  if (size_ == 0) return;
  void* const data = ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (data == MAP_FAILED) fail_reading(path, errno);
  data_ = static_cast<const std::byte*>(data);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), path_(std::move(other.path_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(path_, other.path_);
  return *this;
}

void rename_and_sync(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_writing(to, "rename to", errno);
  const std::filesystem::path folder = to.parent_path();
  sync_path(folder.empty() ? std::filesystem::path(".") : folder);
}

RemoveOnFailure::~RemoveOnFailure() {
  if (path_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace foresail
