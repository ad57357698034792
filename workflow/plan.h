// `foresail plan`: from what the user asked to the best strategy, its predictions and a plan file. Needs no ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "planner/search/search.h"
#include "spec/plan.h"

namespace foresail {

struct PlanOptions {
  std::string model;               ///< --model; empty: the job's
  std::string machine;             ///< --machine
  std::filesystem::path job;       ///< --job; empty: defaults
  std::string devices;             ///< --devices "N", "A..B" or "A,B,C"; empty: the machine's own count
  int64_t sequence_length = 0;     ///< --seq-len; 0: the job's, else the model's
  int64_t global_batch = 0;        ///< --global-batch; 0: the job's, else proposed
  int64_t tokens = 0;              ///< --tokens; 0: the job's
  int64_t dataset_bytes = 0;       ///< --dataset-bytes
  std::string objective = "time";  ///< --objective time|cost|throughput
  double deadline_days = 0;        ///< --deadline; 0: none
  double budget_usd = 0;           ///< --budget; 0: none
  int64_t memory_bytes = 0;        ///< --memory per device; 0: what the device has
  int64_t top = 5;                 ///< --top
  std::string fix;                 ///< --fix "tp=2,pp=1"
  std::string stack;               ///< --stack; empty: "foresail"
  std::filesystem::path out;       ///< --out plan.json; empty: not written
  std::filesystem::path trace;     ///< --trace; empty: not written
  std::filesystem::path
      dump_program;  ///< --dump-program: stage 0's file; stage k goes to NAME.stage-k.EXT; empty: not written
};

struct PlanResult {
  SearchRequest request;  ///< with every default filled in
  SearchResult search;
  std::string batch_reason;  ///< why this global batch was proposed; empty: it was given
  std::string costs_note;    ///< where costs come from that were not measured as such; empty: nothing to say
  Plan plan;                 ///< of the best strategy; meaningless if infeasible
  bool feasible() const { return !search.plans.empty(); }  ///< exit code 0, otherwise 1
};

/// Files are written only when a plan was found. Throws bad_input.
PlanResult make_plan(const PlanOptions& options);
/// One JSON document with the keys of the design; parts not built yet are null.
std::string plan_result_to_json(const PlanResult& result);
/// For people: the choice, its time and memory by kind, runners-up, frontier, what was refused and why.
std::string plan_table(const PlanResult& result);

}  // namespace foresail
