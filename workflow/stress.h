// `foresail stress`: some minutes of the real plan, judged against what was predicted. Like `train`, every rank calls it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "workflow/judge.h"
#include "workflow/train.h"

namespace foresail {

struct StressOptions {
  std::filesystem::path plan;
  std::filesystem::path data;  ///< prefix; empty: the job's data_path
  std::filesystem::path out;   ///< folder for the drill's checkpoint and stress.json; empty: a temporary one
  double minutes = 1.5;
  bool drills = true;  ///< false: --no-drills
  std::string device;  ///< as TrainOptions::device
};

struct StressResult {
  std::string verdict;  ///< "pass" or "fail"
  std::vector<StressCheck> checks;
  std::string plan;  ///< path of the plan
  double seconds = 0;
  bool passed() const { return verdict == "pass"; }  ///< exit code 0, otherwise 1
};

RankCount check_stress(const StressOptions& options);
/// Runs in every rank; the result is complete on rank 0.
StressResult stress(const StressOptions& options, Communicator& communicator);
/// One JSON document.
std::string stress_result_to_json(const StressResult& result);
/// Predicted and measured side by side, one line per check, for people.
std::string stress_table(const StressResult& result);

}  // namespace foresail
