// `foresail simulate`: the prediction for one stated strategy, or for a dumped Program. Needs no ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "planner/search/search.h"

namespace foresail {

struct SimulateOptions {
  // Either a strategy of a model ...
  std::string model;            ///< --model
  int64_t devices = 0;          ///< --devices; 0: what the strategy needs, with dp=1 if it is left out
  int64_t sequence_length = 0;  ///< --seq-len; 0: the job's, else the model's
  int64_t global_batch = 0;     ///< --global-batch; 0: the job's, else proposed
  std::string strategy;         ///< --strategy "tp=2,micro_batch=1"; dp may be left out
  std::filesystem::path job;    ///< --job; empty: defaults
  // ... or dumped Programs, one per pipeline stage in order.
  std::vector<std::filesystem::path> programs;  ///< --program FILE...

  std::string machine;          ///< --machine
  std::string stack;            ///< --stack; empty: "foresail"
  std::filesystem::path trace;  ///< --trace; empty: not written
};

struct SimulateResult {
  SearchRequest request;     ///< model, job, machine and stack with every default filled in
  std::string batch_reason;  ///< why this global batch was proposed; empty: it was given
  Candidate candidate;
  std::string costs_note;     ///< where costs come from that were not measured as such; empty: nothing to say
  bool from_program = false;  ///< simulated from a dump: no model, no job
  bool fits = true;           ///< false: peak_bytes exceeds the device's memory (exit code 1)
};

/// Throws bad_input, with the reasons if the strategy is not legal.
SimulateResult simulate_strategy(const SimulateOptions& options);
/// The document of `plan --json` with one plan.
std::string simulate_result_to_json(const SimulateResult& result);
std::string simulate_table(const SimulateResult& result);

}  // namespace foresail
