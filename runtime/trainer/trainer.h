// A training run from step to step: start or resume, evaluate, checkpoint, skip bad steps, stop when asked. Everything that
// a run leaves behind (metrics, events, terminal) goes out through callbacks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/checkpoint/manifest.h"
#include "runtime/trainer/batch.h"
#include "runtime/trainer/session.h"

namespace foresail {

/// One optimizer step, as rank 0 saw it.
struct StepRecord {
  int64_t step = 0;
  int64_t tokens = 0;        ///< read so far; those that a loss mask leaves out are among them
  int64_t global_batch = 0;  ///< sequences of this step
  double loss = 0, grad_norm = 0, clip_factor = 0, learning_rate = 0;
  std::optional<double> auxiliary_loss;  ///< of routers, if the model has them
  double seconds = 0;
  bool skipped = false;                   ///< the update was left out: its gradient or loss was not finite
  std::optional<double> validation_loss;  ///< measured after this step
};

/// The first is "start" or "resume", once the state is known to be good: until then the run's folder is as it was. Then
/// "resume_verified", "resume_unverified", "batch_ramp" (another batch size begins), "expert_overflow", "step_skipped",
/// "loss_scale", "evaluation",
/// "evaluation_stopped" (a stop request came while it ran), "checkpoint", "stop", "finish".
struct RunEvent {
  std::string kind;
  int64_t step = 0;
  std::string text;
  std::string path;  ///< of a checkpoint
  double seconds = 0;
};

struct TrainerOptions {
  std::filesystem::path run;                  ///< its checkpoints lie in run/checkpoints
  int64_t total_steps = 0;                    ///< of the plan: the learning-rate schedule ends there
  int64_t stop_after = 0;                     ///< last step of this call
  SampleReader training, validation;          ///< validation may be empty
  std::optional<std::filesystem::path> init;  ///< parameters from here: step-N or Hugging Face folder
  bool resume = false;
  std::optional<int64_t> resume_step;
  RunState identity;                          ///< what checkpoints say about the run; step and losses are filled in
  std::map<int64_t, double> recorded_losses;  ///< of the run's former life: replayed steps are compared with them
  bool recorded_by_same_plan = true;          ///< those losses must come back bit by bit
  std::function<bool()> stop_requested;       ///< this rank was asked to stop; may be empty
  std::function<void(const StepRecord&)> on_step;  ///< rank 0 only; may be empty
  std::function<void(const RunEvent&)> on_event;   ///< rank 0 only; may be empty
  int64_t most_bad_steps = 5;                      ///< in a row, then the run fails
};

struct TrainerReport {
  int64_t first_step = 0, last_step = 0;  ///< first_step - 1 was the state at the start
  int64_t tokens = 0;                     ///< trained on since the start of the run
  double loss = 0;                        ///< of the last step
  std::optional<double> validation_loss;
  int64_t global_batch = 0;          ///< of the last step; 0: this call made none
  std::vector<double> step_seconds;  ///< of every step of this call with that batch
  int64_t resident_bytes = 0;        ///< largest of any rank
  std::string checkpoint;            ///< the last one written or resumed from
  bool stopped = false;              ///< before stop_after, on request
};

/// Collective over the session's ranks; the report is complete on rank 0. Throws bad_input (checkpoints that do not fit or
/// are damaged, a resume that does not reproduce what was recorded) and environment_failed (disk, too many bad steps) on
/// every rank.
TrainerReport run_training(Session& session, Communicator& communicator, const TrainerOptions& options);

/// Mean loss over the counted targets of `batches` global batches from sample `first` on, with the evaluation Program; 0 if
/// none counts; no value if `stop`, asked before each of them, wants no more: all ranks must hear the same answer.
/// Collective.
std::optional<double> evaluate_loss(Session& session, const SampleReader& read, int64_t first, int64_t batches,
                                    const std::function<bool()>& stop = {});

}  // namespace foresail
