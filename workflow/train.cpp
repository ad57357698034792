#include "workflow/train.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/model_weights.h"
#include "runtime/checkpoint/ranks.h"
#include "runtime/io/folder_lock.h"
#include "runtime/launch/rank.h"
#include "workflow/judge.h"
#include "workflow/run_log.h"
#include "workflow/run_setup.h"
#include "workflow/run_tokenizer.h"
#include "workflow/train_events.h"

namespace foresail {
namespace {

bool holds_something(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::exists(folder, error) && !std::filesystem::is_empty(folder, error);
}

/// What a run leaves from its first step on; other things are foreign.
bool holds_run(const std::filesystem::path& folder) {
  std::error_code error;
  return std::filesystem::exists(metrics_path(folder), error) || std::filesystem::exists(events_path(folder), error) ||
         std::filesystem::is_directory(checkpoints_folder(folder), error);
}

void check_run_folder(const TrainOptions& options) {
  if (options.out.empty()) throw_bad_input("train", "--out is missing", "name the run's folder");
  if (std::filesystem::exists(options.out) && !std::filesystem::is_directory(options.out)) {
    throw_bad_input(options.out.string(), "it is not a folder", "name a folder for the run");
  }
  if (!options.resume && holds_something(options.out)) {
    if (!holds_run(options.out)) {
      throw_bad_input(options.out.string(), "it is not empty", "name a new or an empty folder");
    }
    throw_bad_input(options.out.string(), "it holds a run already",
                    "add --resume to go on with it, or name another folder");
  }
  require_creatable_folder(options.out);
  if (options.resume && options.init) {
    throw_bad_input("--init", "a resumed run has its parameters", "leave out --init or --resume");
  }
}

/// The last optimizer step of this call and of the learning-rate schedule.
struct Steps {
  int64_t last = 0, total = 0;
};

Steps steps_of(const TrainOptions& options, const Plan& plan) {
  const int64_t total = plan.steps > 0 ? plan.steps : options.steps.value_or(0);
  if (total < 1)
    throw_bad_input(options.plan.string(), "it states no number of steps", "add --steps N, or plan with --tokens T");
  const int64_t last = options.steps.value_or(total);
  if (last < 1 || last > total) {
    throw_bad_input("--steps", fmt::format("{} is not between 1 and the plan's {}", last, total),
                    "give fewer, or plan with more --tokens or more steps in the job");
  }
  return {last, total};
}

/// Finite losses of the run's former life.
std::map<int64_t, double> recorded_losses(const TrainOptions& options) {
  std::map<int64_t, double> losses;
  if (!options.resume) return losses;
  for (const StepLine& line : read_metrics(metrics_path(options.out))) {
    if (std::isfinite(line.loss)) losses[line.step] = line.loss;
  }
  return losses;
}

/// The plan of the run's last life; empty if there was none.
std::string last_plan(const TrainOptions& options) {
  const std::filesystem::path path = options.out / "plan.json";
  return std::filesystem::exists(path) ? read_file(path) : "";
}

TrainResult result_of(const TrainOptions& options, const RunSetup& setup, const TrainerReport& report, double seconds) {
  const Program& program = setup.session->programs.train;
  const int64_t tokens = report.global_batch * program.sequence_length;
  TrainResult result;
  result.steps = report.last_step;
  result.tokens = report.tokens;
  result.loss = report.loss;
  result.validation_loss = report.validation_loss;
  result.step_seconds_median = median_of(report.step_seconds);
  if (result.step_seconds_median > 0) {
    result.tokens_per_second = static_cast<double>(tokens) / result.step_seconds_median;
    result.mfu = mfu_of(setup, result.step_seconds_median, report.global_batch);
  }
  result.peak_bytes = report.resident_bytes;
  result.arena_bytes = setup.arena_bytes;
  result.restarts = count_resumes(events_path(options.out));
  const double price = setup.plan.job.usd_per_device_hour;
  if (price > 0) result.usd = price * program.mesh.size() * seconds / 3600;
  result.checkpoint = report.checkpoint;
  result.stopped = report.stopped;
  return result;
}

void prepare_folder(const TrainOptions& options, const RunSetup& setup, FolderLock& lock) {
  create_folder(options.out);
  if (!lock.held()) lock = FolderLock(options.out);
  check_run_folder(options);  // another run may have begun since the first check
  write_file_atomically(options.out / "plan.json", setup.plan_text);
  keep_tokenizer(setup.data->prefix(), options.out);
  log_info("plan {} ({}): arena of {} bytes allocated, as predicted", short_text(setup.plan.strategy),
           setup.plan.model_name, setup.arena_bytes);
}

/// What a rank would find out, said before any starts.
void check_init(const TrainOptions& options, const Plan& plan) {
  const std::filesystem::path& path = *options.init;
  if (std::filesystem::exists(path / kManifestName)) {
    const Checkpoint checkpoint(path);
    checkpoint.check_files();
    if (!checkpoint.manifest().sealed)
      log_warning("{}: it holds no digests: its values cannot be verified", path.string());
    return;
  }
  const ModelWeights weights(path, request_of(plan).model);
  weights.check_head_copy();
  for (const std::string& note : weights.notes()) log_warning("{}", note);
}

/// A run that never finished a checkpoint starts at step 0.
void check_checkpoints(const TrainOptions& options) {
  if (!options.resume || (!options.resume_step && !holds_checkpoints(options.out))) return;
  const std::vector<CheckpointEntry> entries = list_checkpoints(options.out);
  const bool some = std::any_of(entries.begin(), entries.end(), [](const auto& entry) { return entry.complete; });
  if (options.resume_step || !some) checkpoint_to_resume(options.out, options.resume_step);
}

void warn_of_other_tokenizer(const TrainOptions& options, const Plan& plan) {
  const auto data = data_prefix(options.data, plan);
  const std::filesystem::path init = options.init.value_or("");
  for (const auto& model : {std::filesystem::path(plan.job.model), init}) {
    if (const std::string difference = tokenizer_difference(model, data); !difference.empty()) {
      return log_warning("{}", difference);
    }
  }
}

}  // namespace

RankCount check_train(const TrainOptions& options) {
  check_run_folder(options);
  const RankCount count = check_setup(options.plan, options.data, options.device);
  const Plan plan = load_plan(options.plan);
  steps_of(options, plan);
  if (options.init) check_init(options, plan);
  warn_of_other_tokenizer(options, plan);
  check_checkpoints(options);
  if (options.resume) read_metrics(metrics_path(options.out));
  return count;
}

TrainResult train(const TrainOptions& options, Communicator& communicator) {
  const auto begin = std::chrono::steady_clock::now();
  const RunSetup setup = open_run(options.plan, options.data, options.device, communicator);
  require_predicted_arena(setup, options.plan);
  const Steps steps = steps_of(options, setup.plan);
  FolderLock lock;  // of rank 0
  first_rank_does({&communicator, world_group(*setup.session)}, [&] {
    if (options.resume && std::filesystem::exists(options.out)) lock = FolderLock(options.out);
    return std::string();
  });
  TrainerOptions trainer;
  trainer.run = options.out;
  trainer.total_steps = steps.total;
  trainer.stop_after = steps.last;
  trainer.training = reader_of(*setup.training);
  if (setup.validation != nullptr) trainer.validation = reader_of(*setup.validation);
  trainer.init = options.init;
  trainer.resume = options.resume;
  trainer.resume_step = options.resume_step;
  trainer.identity = setup.identity;
  trainer.recorded_losses = recorded_losses(options);
  trainer.recorded_by_same_plan = last_plan(options) == setup.plan_text;
  trainer.stop_requested = stop_requested;
  communicator.barrier(world_group(*setup.session));  // everybody has read the old metrics before they are cut
  std::optional<RunLog> log;
  if (communicator.rank() == 0) {
    trainer.on_step = [&](const StepRecord& record) { log->on_step(record); };
    trainer.on_event = [&](const RunEvent& event) {
      if (!log) {  // the first event: the state is good, the run may leave its traces
        prepare_folder(options, setup, lock);
        log.emplace(options.out, setup, steps.last, options.terminal);
      }
      log->on_event(event);
    };
  }
  const TrainerReport report = run_training(*setup.session, communicator, trainer);
  if (log) log->finish();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return communicator.rank() == 0 ? result_of(options, setup, report, seconds) : TrainResult{};
}

}  // namespace foresail
