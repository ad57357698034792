#include "runtime/executor/resident.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <string>
#include <string_view>

#include "core/error.h"

namespace foresail {
namespace {

/// The kB figure of a line "Pss:      12 kB" if it has this key; -1 otherwise.
int64_t kilobytes_of(std::string_view line, std::string_view key) {
  if (!line.starts_with(key)) return -1;
  line.remove_prefix(key.size());
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  int64_t value = -1;
  std::from_chars(line.data(), line.data() + line.size(), value);
  return value;
}

/// The first line of a mapping: "7f12-7f34 rw-p 0000 00:00 0   /path".
bool starts_mapping(std::string_view line) {
  const size_t dash = line.find('-'), space = line.find(' ');
  return dash != std::string_view::npos && space != std::string_view::npos && dash < space && line.find(':') > space;
}

bool is_dataset(std::string_view line) { return line.ends_with(".bin") || line.ends_with(".idx"); }

}  // namespace

int64_t resident_bytes() {
  std::ifstream file("/proc/self/smaps");
  if (!file) throw_environment("/proc/self/smaps", "it cannot be read", "mount /proc");
  int64_t kilobytes = 0;
  bool counted = true;
  for (std::string line; std::getline(file, line);) {
    if (starts_mapping(line)) {
      counted = !is_dataset(line);
    } else if (const int64_t pss = kilobytes_of(line, "Pss:"); pss > 0 && counted) {
      kilobytes += pss;
    }
  }
  return kilobytes * 1024;
}

int64_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (const int64_t kilobytes = kilobytes_of(line, "MemAvailable:"); kilobytes >= 0) return kilobytes * 1024;
  }
  return std::numeric_limits<int64_t>::max();
}

}  // namespace foresail
