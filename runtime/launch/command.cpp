#include "runtime/launch/command.h"

#include <sched.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/file.h"
#include "runtime/launch/channel.h"

namespace foresail {
namespace {

constexpr int kMostSlots = 1 << 20;

/// One byte of our own memory through the system call that CMA uses: seccomp profiles refuse it outright.
bool single_copy_permitted() {
  char source = 1, target = 0;
  const iovec local{&target, 1}, remote{&source, 1};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1;
}

int slots_on_line(const std::string& word, const std::string& path) {
  const std::string text = word.substr(word.find('=') + 1);
  int slots = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), slots);
  if (error != std::errc() || end != text.data() + text.size() || slots < 1 || slots > kMostSlots) {
    throw_bad_input(path, "'" + word + "' is no number of slots", "write slots=N with N of 1 or more");
  }
  return slots;
}

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
}

std::vector<std::string> own_arguments() {
  std::vector<std::string> arguments;
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  if (!arguments.empty()) arguments.erase(arguments.begin());
  return arguments;
}

HostFacts detect_host_facts() {
  return {available_cores(), geteuid() == 0, single_copy_permitted(), isatty(STDERR_FILENO) == 1};
}

Hosts read_hostfile(const std::string& path) {
  Hosts hosts{0, 0};
  bool all_have_slots = true;
  std::istringstream stream(read_file(path));
  for (std::string line; std::getline(stream, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string host;
    if (!(words >> host)) continue;
    ++hosts.count;
    bool has_slots = false;
    for (std::string word; words >> word;) {
      if (!word.starts_with("slots=")) continue;
      hosts.slots = std::min(kMostSlots, hosts.slots + slots_on_line(word, path));
      has_slots = true;
    }
    all_have_slots = all_have_slots && has_slots;
  }
  if (hosts.count == 0) throw_bad_input(path, "it names no host", "write one line per host: NAME slots=N");
  if (!all_have_slots) hosts.slots = 0;
  return hosts;
}

std::vector<std::string> mpirun_command(const LaunchRequest& request, const HostFacts& facts, const Hosts& hosts,
                                        const std::string& mpirun, const std::string& program,
                                        const std::string& channel) {
  const int ranks_per_host = (request.ranks + hosts.count - 1) / hosts.count;
  const bool crowded = ranks_per_host * request.threads_per_rank > facts.cores;
  std::vector<std::string> command = {mpirun, "-np", std::to_string(request.ranks)};
  const auto add = [&](std::initializer_list<std::string> words) { command.insert(command.end(), words); };
  if (facts.root) add({"--allow-run-as-root"});
  if (request.hostfile.empty()) {
    // Open MPI counts physical cores as slots, the plan the cores it may use: more ranks than slots is our decision.
    add({"--oversubscribe", "--mca", "orte_tmpdir_base", channel});
  } else {
    add({"--hostfile", request.hostfile});
  }
  // A rank of one thread keeps its core and its cache; threads need room to spread, and crowded ranks to move.
  const bool bind = !crowded && request.threads_per_rank == 1;
  add({"--bind-to", bind ? "core:overload-allowed" : "none"});
  add({"--mca", "mpi_yield_when_idle", crowded ? "1" : "0"});
  if (!facts.single_copy) add({"--mca", "btl_vader_single_copy_mechanism", "none"});

  const auto export_variable = [&](const std::string& name, const std::string& value) {
    add({"-x", name + "=" + value});
  };
  export_variable("OMP_NUM_THREADS", std::to_string(request.threads_per_rank));
  if (crowded) export_variable("OMP_WAIT_POLICY", "passive");
  // Large temporaries stay mapped: MPI otherwise page-faults fresh memory on every call (docs/comm.md).
  export_variable("MALLOC_MMAP_MAX_", "0");
  export_variable("MALLOC_TRIM_THRESHOLD_", "17179869184");
  export_variable("OMPI_MCA_opal_signal", "");  // no stack traces for users: the launcher says who died of what
  export_variable(kChannelVariable, channel);
  export_variable(kTerminalVariable, facts.terminal ? "1" : "0");
  command.push_back(program);
  command.insert(command.end(), request.arguments.begin(), request.arguments.end());
  return command;
}

std::string find_mpirun() {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = (folder.empty() ? std::string(".") : folder) + "/mpirun";
    std::error_code ignored;
    if (std::filesystem::is_regular_file(candidate, ignored) && access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  throw_environment("mpirun", "it is not on PATH",
                    "install Open MPI (Debian: apt-get install openmpi-bin) or add it to PATH");
}

std::string own_executable() {
  std::error_code error;
  const std::string path = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error || access(path.c_str(), X_OK) != 0) {
    throw_environment("foresail", "its executable file was moved or replaced while it ran", "start it again");
  }
  return path;
}

}  // namespace foresail
