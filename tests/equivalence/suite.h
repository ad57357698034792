// The generated strategies and the planted faults of the equivalence suite.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "tests/equivalence/campaign.h"

namespace foresail::testing {

// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest looks for this name
inline void PrintTo(const Task& task, std::ostream* out) { *out << task.name; }

/// "cpu small-llama dp=2,... batch=12,unfused": what single_task takes.
std::string name_of(const Experiment& experiment);

/// At least 150 strategies in which every possible pair of feature values appears (generator/covering.h). Some are run
/// twice, those with overlap in both queue modes.
std::vector<Task> generated_tasks(const std::string& device);

/// `count` of them, evenly spread.
std::vector<Task> sample_of(const std::vector<Task>& tasks, size_t count);

/// One rank, one micro-batch, fused, nothing recomputed: what every case of the same model and job is compared with.
Experiment baseline_of(const Experiment& experiment);

/// By hand: model "llama", "gpt2", ...; `options` may hold batch=N, unfused, scores, serial, repeat, modes.
Task single_task(const std::string& device, const std::string& model, const std::string& strategy,
                 const std::string& options);

}  // namespace foresail::testing
