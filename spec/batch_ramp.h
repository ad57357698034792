// The batch ramp of a job as the stages of its run: which global batch each optimizer step has. The position in a run is
// the samples it has consumed, so a stage begins and ends at samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "spec/job.h"

namespace foresail {

/// Consecutive steps of one global batch.
struct BatchStage {
  int64_t global_batch = 0;
  int64_t first_sample = 0;  ///< samples consumed before it
  int64_t steps = 0;         ///< of the whole stage; of the last one 0 if the job states no length
  bool operator==(const BatchStage&) const = default;
};

/// The stages of the ramp, then the one of the job's global batch, whether the run reaches them or not (0 steps). Needs
/// sequence_length and global_batch; without them, none.
std::vector<BatchStage> batch_stages(const Job& job);

/// The stage of the step that begins after `samples`; beyond the end, the last one.
size_t batch_stage_at(const std::vector<BatchStage>& stages, int64_t samples);

/// The job's optimizer steps: `steps` if stated, else as many as its tokens need, the ramp's included; 0 if neither is
/// known.
int64_t steps_of(const Job& job);

/// "64 for 100 steps, 128 for 50 steps, then 256"; empty without a ramp.
std::string batch_ramp_text(const Job& job);

/// What the ramp does that no run can do ("goes from 8 to 4 sequences: ..."), empty if there is nothing. The global batch
/// may still be open (0).
std::string batch_ramp_problem(const Job& job);

}  // namespace foresail
