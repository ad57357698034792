// The generated strategies and the planted faults of the equivalence suite.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "tests/equivalence/campaign.h"

namespace foresail::testing {

inline void PrintTo(const Task& task, std::ostream* out) { *out << task.name; }

/// A job that small models learn within ten steps.
Job suite_job(const std::string& device, int64_t global_batch);

/// One rank, one micro-batch, fused, nothing recomputed: what every case of the same model and job is compared with.
Experiment baseline_of(const Experiment& experiment);

/// By hand: model "llama", "gpt2", ...; `options` may hold batch=N, unfused, scores, serial, repeat, modes.
Task single_task(const std::string& device, const std::string& model, const std::string& strategy,
                 const std::string& options);

}  // namespace foresail::testing
