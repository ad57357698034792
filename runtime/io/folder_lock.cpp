#include "runtime/io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "core/error.h"

namespace foresail {
namespace {

constexpr auto kPatience = std::chrono::seconds(3);  // a killed process with much memory takes a while to go
constexpr auto kInterval = std::chrono::milliseconds(50);

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder) {
  descriptor_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor_ < 0) {
    throw_bad_input(folder.string(), std::string("cannot be opened: ") + std::strerror(errno),
                    "check the folder and its permissions");
  }
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
    if (std::chrono::steady_clock::now() > deadline) {
      ::close(std::exchange(descriptor_, -1));
      throw_bad_input(folder.string(), "another process is writing to it", "wait until it ends, or end it");
    }
    std::this_thread::sleep_for(kInterval);
  }
}

FolderLock::~FolderLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

}  // namespace foresail
