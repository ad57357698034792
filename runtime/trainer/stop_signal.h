// SIGTERM and SIGINT (and SIGUSR1, which mpirun passes on where it would answer SIGTERM by killing) ask a run to finish
// its step, write a checkpoint and stop.
#pragma once

namespace foresail {

/// Catches the signals while it lives and restores what was there before. One at a time per process.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Whether one has arrived since construction, in this process.
  bool requested() const;
};

}  // namespace foresail
