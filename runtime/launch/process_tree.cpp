#include "runtime/launch/process_tree.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "runtime/launch/channel.h"

namespace foresail {
namespace {

bool belongs_to(const std::filesystem::path& process, const std::string& entry) {
  std::ifstream file(process / "environ", std::ios::binary);
  for (std::string variable; std::getline(file, variable, '\0');) {
    if (variable == entry) return true;
  }
  return false;
}

}  // namespace

std::vector<pid_t> ranks_of_run(const std::string& channel) {
  const std::string entry = std::string(kChannelVariable) + "=" + channel;
  std::vector<pid_t> found;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const bool is_process = std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
    if (is_process && belongs_to(it->path(), entry)) found.push_back(static_cast<pid_t>(std::stol(name)));
  }
  return found;
}

}  // namespace foresail
