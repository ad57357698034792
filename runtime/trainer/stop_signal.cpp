#include "runtime/trainer/stop_signal.h"

#include <array>
#include <csignal>

namespace foresail {
namespace {

constexpr std::array<int, 3> kSignals{SIGTERM, SIGINT, SIGUSR1};

// A signal handler can reach only static storage.
volatile std::sig_atomic_t stop_requested = 0;
std::array<struct sigaction, kSignals.size()> previous;

extern "C" void request_stop(int) { stop_requested = 1; }

}  // namespace

StopSignals::StopSignals() {
  stop_requested = 0;
  struct sigaction action {};
  action.sa_handler = request_stop;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &previous[i]);
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous[i], nullptr);
}

bool StopSignals::requested() const { return stop_requested != 0; }

}  // namespace foresail
