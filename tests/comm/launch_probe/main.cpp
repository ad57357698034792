// A small program that starts itself as ranks, the way the verbs of foresail do, and then meets the fate its first
// argument names. The launch tests drive it and look at its exit code, its output and what it leaves behind.
//
//   launch_probe FATE RANKS FOLDER [GRACE_SECONDS [HOSTFILE]]
//
// Ranks leave their process ids in FOLDER/pid-R once they have met in a first collective.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iostream>
#include <map>
#include <thread>

#include "comm/communicator.h"
#include "core/error.h"
#include "runtime/launch/launch.h"
#include "runtime/launch/rank.h"

namespace {

using namespace foresail;

struct Probe {
  std::string fate, folder;
  Communicator& comm;
};

/// Works in steps joined by a collective until somebody asks it to stop, like a trainer.
Exit work_until_stopped(Probe& probe) {
  for (int step = 0; step < 6000; ++step) {
    int32_t stop = stop_requested() ? 1 : 0;
    probe.comm.all_reduce(&stop, 1, DType::i32, ReduceKind::max, 0);
    if (stop) {
      if (probe.comm.rank() == 0) std::cout << "stopped in order" << std::endl;
      return Exit::stopped;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  throw_environment("probe", "nobody stopped it", "");
}

Exit never_return() {
  for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
}

Exit last_rank_does(Probe& probe, const std::function<void()>& deed) {
  if (probe.comm.rank() == probe.comm.size() - 1) deed();
  probe.comm.barrier(0);  // where the others wait for it in vain
  return Exit::done;
}

const std::map<std::string, std::function<Exit(Probe&)>> kFates = {
    {"done", [](Probe&) { return Exit::done; }},
    {"no", [](Probe&) { return Exit::answer_is_no; }},
    {"speak",
     [](Probe& probe) {
       std::cout << "output of " << probe.comm.rank() << std::endl;
       std::cerr << "log of " << probe.comm.rank() << std::endl;
       return Exit::done;
     }},
    {"big",
     [](Probe&) {
       for (int line = 0; line < 20000; ++line) std::cout << line << " is a line of a long document\n";
       return Exit::done;
     }},
    {"sum",
     [](Probe& probe) {
       double value = probe.comm.rank() + 1;
       probe.comm.all_reduce(&value, 1, DType::f64, ReduceKind::sum, 0);
       if (probe.comm.rank() == 0) std::cout << "sum " << value << std::endl;
       return Exit::done;
     }},
    {"error",
     [](Probe& probe) {
       return last_rank_does(
           probe, [] { throw_bad_input("data.bin", "token 70000 is beyond the vocabulary", "prepare it again"); });
     }},
    {"every-error", [](Probe&) -> Exit { throw_bad_input("plan.json", "field 'seed': -1", "use 0 or more"); }},
    {"exception", [](Probe& probe) { return last_rank_does(probe, [] { throw std::runtime_error("a surprise"); }); }},
    {"kill", [](Probe& probe) { return last_rank_does(probe, [] { raise(SIGKILL); }); }},
    {"crash",
     [](Probe& probe) {
       return last_rank_does(probe, [] {
         std::cerr << "the reason of the crash" << std::endl;
         raise(SIGSEGV);
       });
     }},
    {"leave", [](Probe& probe) { return last_rank_does(probe, [] { _exit(9); }); }},
    {"abort", [](Probe& probe) { return last_rank_does(probe, [&] { probe.comm.abort("peers cannot see this"); }); }},
    {"work", work_until_stopped},
    {"deaf", [](Probe&) { return never_return(); }},
};

Exit run_rank(const std::string& fate, const std::string& folder) {
  const auto comm = make_mpi_communicator();
  std::vector<int> everyone;
  for (int rank = 0; rank < comm->size(); ++rank) everyone.push_back(rank);
  comm->create_groups({everyone});
  std::ofstream(folder + "/pid-" + std::to_string(comm->rank())) << getpid() << std::endl;
  comm->barrier(0);
  Probe probe{fate, folder, *comm};
  return kFates.at(fate)(probe);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  try {
    const RankEnvironment environment = detect_rank_environment();
    if (environment.ranked) {
      return static_cast<int>(run_rank_main(environment, [&] { return run_rank(argv[1], argv[3]); }));
    }
    LaunchRequest request;
    request.ranks = std::stoi(argv[2]);
    request.arguments = own_arguments();
    if (argc > 4) request.grace_seconds = std::stod(argv[4]);
    if (argc > 5) request.hostfile = argv[5];
    return static_cast<int>(launch_ranks(request));
  } catch (const Error& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return static_cast<int>(error.exit());
  }
}
