// `foresail train` inside one rank: the plan is compiled, proved equal to what was planned, and run to its end. The
// launcher starts one process per device of the plan; every process calls `train` with the same options.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "comm/communicator.h"

namespace foresail {

struct TrainOptions {
  std::filesystem::path plan;                 ///< plan.json
  std::filesystem::path data;                 ///< prefix of the .bin/.idx pair; empty: the job's data_path
  std::filesystem::path out;                  ///< the run folder
  std::optional<std::filesystem::path> init;  ///< step-N or Hugging Face folder to take the parameters from
  bool resume = false;
  std::optional<int64_t> resume_step;  ///< of --resume=step-N; otherwise the latest complete checkpoint
  std::optional<int64_t> steps;        ///< stop after this optimizer step instead of the plan's last one
  std::string device;                  ///< "cpu" or "reference"; empty: what the plan was compiled for
  bool terminal = false;               ///< progress is rewritten in place instead of logged line by line
};

/// The JSON document that `train --json` prints. Keys of rooms not yet built are null in JSON.
struct TrainResult {
  int64_t steps = 0, tokens = 0;
  double loss = 0;
  std::optional<double> validation_loss;
  double step_seconds_median = 0, tokens_per_second = 0, mfu = 0;
  int64_t peak_bytes = 0, arena_bytes = 0;
  int64_t restarts = 0;
  std::optional<double> usd;
  std::string checkpoint;  ///< the last one written
  bool stopped = false;    ///< by SIGTERM or SIGINT after a checkpoint: exit code 75
};

/// Checks of the options that need no ranks (files readable, run folder empty or --resume given), for the launching
/// process: returns the number of ranks to start and sets nothing up. Throws bad_input.
struct RankCount {
  int ranks = 1, threads = 1;
  int64_t bytes_per_rank = 0;  ///< predicted peak
};
RankCount check_train(const TrainOptions& options);

/// Runs in every rank; the result is complete on rank 0. Throws foresail::Error (the same kind on every rank when the
/// cause is visible to all).
TrainResult train(const TrainOptions& options, Communicator& communicator);

/// One JSON document.
std::string train_result_to_json(const TrainResult& result);

}  // namespace foresail
