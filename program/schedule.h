// The order of micro-batches on a pipeline stage.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace foresail {

/// Micro-batches whose activations stage `stage` of `stages` holds at once under 1F1B.
int32_t micro_batches_in_flight(int64_t stages, int64_t stage, int64_t micro_batches);

/// 1F1B (Narayanan et al. 2019, PipeDream-flush; Fan et al. 2021, DAPPLE): a warm-up of forwards, then one forward and one
/// backward in turn, then the remaining backwards; slots are reused in order.
std::vector<ScheduleEntry> one_f_one_b(int64_t stages, int64_t stage, int64_t micro_batches);

/// Forward only: every micro-batch in slot 0.
std::vector<ScheduleEntry> forward_only(int64_t micro_batches);

}  // namespace foresail
