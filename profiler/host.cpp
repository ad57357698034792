#include "profiler/host.h"

#include <dnnl_version.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <fstream>

#include <fmt/format.h>

#include "core/version.h"

namespace foresail {
namespace {

constexpr int64_t kCacheIfUnknown = int64_t{32} << 20;

std::string time_of_day() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

}  // namespace

int cores_of_host() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("model name")) continue;
    const size_t at = line.find_first_not_of(" \t", line.find(':') + 1);
    if (at != std::string::npos) return line.substr(at);
  }
  return "unknown";
}

int64_t memory_of_host_bytes() { return int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE); }

int64_t last_level_cache_bytes() {
  const int64_t told = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return told > 0 ? told : kCacheIfUnknown;
}

std::map<std::string, std::string> versions(const Communicator& communicator) {
  utsname system{};
  uname(&system);
  std::map<std::string, std::string> result{
      {"foresail", version_text()},
      {"oneDNN", fmt::format("{}.{}.{}", DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH)},
      {"kernel", fmt::format("{} {}", system.sysname, system.release)}};
  if (communicator.size() > 1) result["mpi"] = communicator.description();
  return result;
}

Machine describe_host() {
  utsname system{};
  uname(&system);
  Machine machine;
  machine.kind = "profiled";
  machine.host = system.nodename;
  machine.name = system.nodename;
  machine.cpu_model = cpu_model();
  machine.profiled_at = time_of_day();
  machine.device.name = "cpu";
  return machine;
}

bool same_host(const Machine& stored, const Machine& current) {
  if (stored.cpu_model != current.cpu_model || stored.host != current.host) return false;
  return std::all_of(stored.versions.begin(), stored.versions.end(), [&](const auto& entry) {
    const auto found = current.versions.find(entry.first);
    return found == current.versions.end() || found->second == entry.second;
  });
}

}  // namespace foresail
