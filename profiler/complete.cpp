// From measured tables to the figures of a machine file that follow from them.
#include <algorithm>
#include <charconv>
#include <limits>

#include "profiler/host.h"
#include "profiler/pass.h"

namespace foresail {
namespace {

constexpr const char* kMeasured = "measured by foresail profile";

/// The table of most ranks: all devices at work.
const ProfileTable& fullest(const Machine& machine) {
  return *std::max_element(machine.tables.begin(), machine.tables.end(),
                           [](const ProfileTable& a, const ProfileTable& b) { return a.ranks < b.ranks; });
}

/// Latency from the smallest message, bandwidth from the fastest; nothing where no message was measured.
LinkSpec link_of(const ProfileTable& table) {
  LinkSpec link;
  int64_t smallest = std::numeric_limits<int64_t>::max();
  for (const auto& [key, measured] : table.collectives) {
    constexpr std::string_view kPrefix = "send/2/";
    if (!key.starts_with(kPrefix) || measured.seconds <= 0) continue;
    int64_t bytes = 0;
    std::from_chars(key.data() + kPrefix.size(), key.data() + key.size(), bytes);
    const double rate = static_cast<double>(bytes) / measured.seconds;
    if (rate > link.bytes_per_second.value) link.bytes_per_second = {rate, kMeasured};
    if (bytes < smallest) {
      smallest = bytes;
      link.latency_seconds = {measured.seconds, kMeasured};
    }
  }
  return link;
}

}  // namespace

void complete_machine(Machine& machine, int devices) {
  machine.kind = "profiled";
  machine.cores = cores_of_host();
  machine.devices = machine.devices_per_node = devices;
  machine.device.memory_bytes = {static_cast<double>(memory_of_host_bytes()) / devices,
                                 "the host's memory over its devices"};
  if (machine.tables.empty()) return;
  const ProfileTable& table = fullest(machine);
  machine.device.peak_flops_per_second["f32"] = {table.peak_flops_per_second, kMeasured};
  machine.device.memory_bytes_per_second = {table.copy_bytes_per_second, kMeasured};
  machine.intra_node = link_of(table);
}

}  // namespace foresail
