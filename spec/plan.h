// A plan: what was asked, what was chosen, what is predicted, and the identity of everything it was computed from
// (schema foresail.plan/1). `train` and `stress` need nothing else.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "spec/job.h"
#include "spec/strategy.h"
#include "spec/target.h"

namespace foresail {

/// Bytes on the stage with the largest peak, at that instant; the six values sum to peak_bytes.
struct MemoryPrediction {
  int64_t parameters = 0, gradients = 0, optimizer = 0, activations = 0, scratch = 0, framework = 0;
};

/// Wall time of the rank class that finishes last; the values sum to step_seconds.
struct TimePrediction {
  double compute = 0, recompute = 0, tensor_comm = 0, context_comm = 0, expert_comm = 0, data_comm = 0,
         pipeline_comm = 0, bubble = 0, optimizer = 0, data_wait = 0;
};

struct Prediction {
  double step_seconds = 0, step_seconds_low = 0, step_seconds_high = 0;  ///< 80 % interval
  bool calibrated = false;
  double tokens_per_second = 0, tokens_per_second_per_device = 0;
  double model_flops_per_second_per_device = 0, mfu = 0, hfu = 0;
  int64_t peak_bytes = 0, arena_bytes = 0, framework_bytes = 0;
  std::vector<int64_t> peak_bytes_by_stage;
  MemoryPrediction memory;
  TimePrediction time;
};

struct Plan {
  std::string foresail_version;
  Job job;
  std::string model_config;  ///< the config.json that was planned, whole
  std::string model_name;
  std::string machine_name, machine_digest;
  Strategy strategy;
  Target target;
  std::vector<std::string> program_digests;  ///< one per stage: `train` compiles and compares
  Prediction predicted;
  int64_t steps = 0;  ///< optimizer steps of the whole run
};

/// The `predicted` object of the command line's JSON; keys of parts that are not built yet are null.
std::string prediction_to_json(const Prediction& predicted);

std::string plan_to_json(const Plan& plan);
/// Throws bad_input, also when the file was written by another schema version (saying what changed).
Plan plan_from_json(const std::string& text, const std::string& source);
Plan load_plan(const std::filesystem::path& path);

}  // namespace foresail
