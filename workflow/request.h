// What `plan` and `simulate` share: names and flags turned into a model, a job, a machine and a stack with every
// default filled in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "planner/search/search.h"

namespace foresail {

struct RequestInputs {
  std::string model, machine, stack;
  std::filesystem::path job;
  int64_t sequence_length = 0, global_batch = 0, tokens = 0, dataset_bytes = 0;
};

/// Fills model, job, machine and stack of `request`; the global batch may stay 0. Flags override the job's fields.
/// Without a job file the precision is the machine's: the stack's for a catalogue machine, fp32 for a profiled one.
/// Throws bad_input.
void resolve(const RequestInputs& inputs, SearchRequest& request);

/// Proposes a global batch if the job has none; returns the reason, empty if the batch was given.
std::string settle_global_batch(SearchRequest& request);

}  // namespace foresail
