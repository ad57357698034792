#include "core/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "core/error.h"

namespace foresail {
namespace {

std::string reason_of(int error) { return std::generic_category().message(error); }

/// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }
  /// Some file systems report a failed write only at close. 0 or an errno value.
  int close() {
    const int fd = fd_;
    fd_ = -1;
    return ::close(fd) == 0 ? 0 : errno;
  }

 private:
  int fd_;
};

int open_retrying(const char* path, int flags, mode_t mode = 0) {
  int fd = -1;
  do {
    fd = ::open(path, flags | O_CLOEXEC, mode);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

/// 0 or an errno value.
int write_all(int fd, std::string_view content) {
  constexpr size_t kChunkBytes = size_t{1} << 30;  // Linux writes at most about 2 GiB per call
  while (!content.empty()) {
    const ssize_t written = ::write(fd, content.data(), std::min(content.size(), kChunkBytes));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    content.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

/// 0 or an errno value; leaves an incomplete file on failure.
int write_and_sync(const std::string& path, std::string_view content) {
  Descriptor file(open_retrying(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644));
  if (file.get() < 0) return errno;
  if (const int error = write_all(file.get(), content)) return error;
  if (::fsync(file.get()) != 0) return errno;
  return file.close();
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

/// A path that cannot be written because of what it names is the user's to mend, anything else the machine's.
[[noreturn]] void fail_writing(const std::filesystem::path& path, const std::string& action, int error) {
  const std::string cause = action + ": " + reason_of(error);
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case EACCES:
    case EPERM:
    case EROFS: throw_bad_input(path.string(), cause, "name a place in a folder that exists and may be written to");
    default: throw_environment(path.string(), cause, "free space on that disk, or choose another place");
  }
}

/// The file that a chain of symbolic links ends at: replacing the link would surprise whoever made it.
std::filesystem::path end_of_links(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_symlink(path, error)) return path;
  const std::filesystem::path target = std::filesystem::weakly_canonical(path, error);
  if (error) fail_writing(path, "cannot be written", error.value());
  return target;
}

/// Renaming over a device, a pipe or a folder would destroy it.
void refuse_special_target(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode)) return;
  throw_bad_input(path.string(), S_ISDIR(status.st_mode) ? "is a folder" : "is not a regular file", "name a file");
}

/// Throws unless files can be created in `folder`.
void require_writable_folder(const std::filesystem::path& path, const std::filesystem::path& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0) fail_writing(path, "cannot be written", errno);
  if (!S_ISDIR(status.st_mode)) fail_writing(path, "cannot be written", ENOTDIR);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) fail_writing(path, "cannot be written", errno);
}

}  // namespace

std::string read_file(const std::filesystem::path& path, int64_t limit_bytes) {
  // O_NONBLOCK: opening a named pipe must not hang; the check for a regular file refuses it.
  const Descriptor file(open_retrying(path.c_str(), O_RDONLY | O_NONBLOCK));
  if (file.get() < 0) {
    throw_bad_input(path.string(), "cannot be read: " + reason_of(errno), "check the path and its permissions");
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    throw_bad_input(path.string(), "cannot be read: " + reason_of(errno), "check the path and its permissions");
  }
  if (!S_ISREG(status.st_mode)) {
    throw_bad_input(path.string(), S_ISDIR(status.st_mode) ? "is a folder" : "is not a regular file", "name a file");
  }
  if (status.st_size > limit_bytes) {
    throw_bad_input(
        path.string(),
        "holds " + std::to_string(status.st_size) + " bytes, more than the limit of " + std::to_string(limit_bytes),
        "check that this is the right file");
  }
  std::string content(static_cast<size_t>(status.st_size), '\0');
  size_t filled = 0;
  while (filled < content.size()) {
    const ssize_t got = ::read(file.get(), content.data() + filled, content.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      throw_bad_input(path.string(), "cannot be read: " + reason_of(errno), "check the file and its disk");
    }
    if (got == 0) break;  // the file shrank while we read it
    filled += static_cast<size_t>(got);
  }
  content.resize(filled);
  return content;
}

void write_file_atomically(const std::filesystem::path& named, std::string_view content) {
  refuse_special_target(named);
  const std::filesystem::path path = end_of_links(named);
  const std::string aside = path.string() + ".tmp";
  if (const int error = write_and_sync(aside, content)) {
    ::unlink(aside.c_str());
    fail_writing(named, "cannot be written", error);
  }
  if (::rename(aside.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(aside.c_str());
    fail_writing(named, "cannot be replaced", error);
  }
  sync_path(folder_of(path));
}

void require_writable_file(const std::filesystem::path& path) {
  refuse_special_target(path);
  require_writable_folder(path, folder_of(end_of_links(path)));
}

void require_creatable_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::path nearest = std::filesystem::absolute(path, error);
  while (!std::filesystem::exists(nearest, error) && nearest.has_relative_path()) nearest = nearest.parent_path();
  require_writable_folder(path, nearest);
}

void create_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) fail_writing(path, "cannot be created", error.value());
  if (!std::filesystem::is_directory(path, error)) {
    throw_bad_input(path.string(), "exists and is not a folder", "choose another path");
  }
}

void sync_path(const std::filesystem::path& path) {
  const Descriptor file(open_retrying(path.c_str(), O_RDONLY));
  if (file.get() < 0) {
    throw_environment(path.string(), "cannot be opened to sync it: " + reason_of(errno), "check the path");
  }
  // EINVAL: the file system does not sync this kind of file (some network mounts, for folders).
  if (::fsync(file.get()) != 0 && errno != EINVAL) {
    throw_environment(path.string(), "cannot be synced to disk: " + reason_of(errno), "check the disk");
  }
}

}  // namespace foresail
