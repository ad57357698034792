// One pass of the profiler: a team of ranks measures everything that its table needs, most important first, within its
// budget, and saves as it goes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "models/model_spec.h"
#include "spec/machine.h"

namespace foresail {

struct PassRequest {
  std::vector<ModelSpec> models;  ///< named by the user
  int threads = 1;                ///< of every rank
  double budget_seconds = 30;
  int64_t sequence_length = 0;    ///< 0: the usual one of each model
  bool storage = false;           ///< also measure disk and data reading (once per profile)
  std::filesystem::path partial;  ///< where results are saved, piece by piece, and found again
};

/// Collective over the communicator. Results of an earlier, interrupted pass of the same host, versions and table are kept
/// and not measured again. Throws environment_failed if results cannot be saved.
void run_pass(const PassRequest& request, Communicator& communicator);

/// What the passes saved; empty machine of this host if there is nothing.
Machine load_partial(const std::filesystem::path& partial);

/// Fills in what follows from the tables and the host: device count, cores, peak, memory, links. For the launching process,
/// which is bound to no core.
void complete_machine(Machine& machine, int devices);

}  // namespace foresail
