// Does recovery work? The checkpoint drill: save, destroy the state, restore, compare, continue.
#pragma once

#include <cstdint>
#include <filesystem>

#include "comm/communicator.h"
#include "workflow/run_setup.h"

namespace foresail {

/// One optimizer step of the run on its next batch; what it measured.
struct DrillStep {
  double loss = 0, seconds = 0, data_seconds = 0;
};
DrillStep run_step(RunSetup& setup, int64_t step, int64_t total_steps);

struct CheckpointDrill {
  int64_t bytes = 0;
  double save_seconds = 0, restore_seconds = 0;
  int64_t tensors = 0, different_tensors = 0;  ///< after restoring, against before saving
  double loss = 0, replayed_loss = 0;          ///< of the step after the checkpoint, before and after
};

/// Collective. `completed` optimizer steps were made; the state afterwards is that after one more. Writes into
/// folder/checkpoints. Throws what saving and loading throw.
CheckpointDrill drill_checkpoint(RunSetup& setup, Communicator& communicator, const std::filesystem::path& folder,
                                 int64_t completed, int64_t total_steps);

}  // namespace foresail
