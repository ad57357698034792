// `foresail profile`: what this machine really costs. One pass per rank count, each started by the launcher with exactly
// that many ranks (so that nothing idle disturbs the measurement), then one machine.json.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace foresail {

struct ProfileOptions {
  std::filesystem::path out;        ///< machine.json
  std::vector<std::string> models;  ///< --for
  std::string base;                 ///< --base MACHINE: measurements are laid over it; empty: none
  int64_t ranks = 0;                ///< --ranks N: the most ranks; 0: cores
  double budget_seconds = 60;
  int64_t sequence_length = 0;  ///< of the named models' shapes; 0: what the model is usually trained at
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
};

/// One start of `ranks` processes of `threads` threads.
struct ProfilePass {
  int ranks = 1, threads = 1;
  double budget_seconds = 0;
};

/// Where an interrupted profile keeps what it measured.
std::filesystem::path partial_path(const ProfileOptions& options);

/// Every r <= N that is worth a table, at floor(cores / r) threads, largest first. Throws bad_input on a model or folder
/// that cannot be used.
std::vector<ProfilePass> profile_passes(const ProfileOptions& options);

/// Runs in every rank of a pass; rank 0 saves what was measured beside `out` (`out`.partial), piece by piece, so that an
/// interrupted profile goes on where it stopped.
void profile_pass(const ProfileOptions& options, const ProfilePass& pass, Communicator& communicator);

struct ProfileResult {
  std::string out;
  int64_t measurements = 0;
  double seconds = 0;
  std::string json;  ///< the machine file: the document that --json prints
};

/// In the launching process after all passes: joins the tables, writes machine.json, removes the partial file.
ProfileResult finish_profile(const ProfileOptions& options);

}  // namespace foresail
