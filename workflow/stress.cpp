#include "workflow/stress.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include <unistd.h>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "runtime/checkpoint/ranks.h"
#include "runtime/executor/resident.h"
#include "runtime/launch/rank.h"
#include "runtime/trainer/initialise.h"
#include "spec/batch_ramp.h"
#include "workflow/drills.h"
#include "workflow/run_setup.h"

namespace foresail {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t kWarmUpSteps = 2;
constexpr int64_t kLeastSteps = 3;    // measured ones, however short the time
constexpr double kDrillShare = 0.15;  // of the time is left for the checkpoint drill

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// What the steps of the measured part showed on the slowest rank.
struct Measured {
  std::vector<double> step_seconds, data_seconds;
  int64_t steps = 0;  ///< warm-up included
  bool finite = true;
  double first_loss = 0, last_loss = 0;
  double resident_bytes = 0;
};

Measured run_steps(RunSetup& setup, Communicator& communicator, double seconds, int64_t total_steps) {
  Measured measured;
  const auto begin = Clock::now();
  while (true) {
    const int64_t done = measured.steps - kWarmUpSteps;
    const bool enough = done >= kLeastSteps && (seconds_since(begin) >= seconds || measured.steps >= total_steps);
    if (largest(communicator, *setup.session, enough || stop_requested() ? 1 : 0) != 0) break;
    const DrillStep step = run_step(setup, ++measured.steps, total_steps);
    measured.finite = measured.finite && std::isfinite(step.loss);
    if (measured.steps == 1) measured.first_loss = step.loss;
    measured.last_loss = step.loss;
    if (measured.steps <= kWarmUpSteps) continue;
    measured.step_seconds.push_back(step.seconds);
    measured.data_seconds.push_back(step.data_seconds);
  }
  measured.resident_bytes = largest(communicator, *setup.session, static_cast<double>(resident_bytes()));
  return measured;
}

/// Tokens per second of one rank: what its step needs against what its reader gave.
StressCheck check_data(const RunSetup& setup, double step_seconds, double data_seconds) {
  const Program& program = setup.session->programs.train;
  const auto tokens = static_cast<double>(program.micro_batches * program.rows_per_micro_batch);
  const double required = tokens / step_seconds, supply = tokens / std::max(data_seconds, 1e-9);
  return {.name = "data_tokens_per_second",
          .predicted = required,
          .measured = supply,
          .unit = "tokens/s",
          .passed = supply >= required,
          .why = fmt::format("of one rank; reading takes {:.2f} % of a step", 100 * data_seconds / step_seconds),
          .label = "data: needed / supplied"};
}

StressCheck check_loss(const Measured& measured) {
  const bool passed = measured.finite && measured.last_loss < measured.first_loss;
  return {.name = "loss",
          .predicted = {},
          .measured = measured.last_loss,
          .unit = "nats",
          .passed = passed,
          .why = fmt::format("from {:.4f} in {} steps{}", measured.first_loss, measured.steps,
                             measured.finite ? "" : "; a loss was not finite")};
}

void add_drill_checks(const CheckpointDrill& drill, std::vector<StressCheck>& checks) {
  checks.push_back({.name = "checkpoint_restore",
                    .predicted = 0.0,
                    .measured = static_cast<double>(drill.different_tensors),
                    .unit = "different tensors",
                    .passed = drill.different_tensors == 0,
                    .why = fmt::format("{} tensors, {} bytes saved in {:.2f} s, restored in {:.2f} s", drill.tensors,
                                       drill.bytes, drill.save_seconds, drill.restore_seconds)});
  const bool equal = drill.loss == drill.replayed_loss;
  checks.push_back({.name = "loss_after_restore",
                    .predicted = drill.loss,
                    .measured = drill.replayed_loss,
                    .unit = "nats",
                    .passed = equal,
                    .why = equal ? "the same bits" : "must be the same bits"});
}

/// The drill's folder, in the given one or among temporary files; removed at the end. Rank 0 names it. It is never the given
/// folder itself, whose checkpoints the drill could prune.
class DrillFolder {
 public:
  DrillFolder(const std::filesystem::path& given, const CheckpointRanks& ranks)
      : removes_(ranks.rank() == 0),
        path_(share_text(ranks, given.empty() ? temporary_name() : (given / "stress-drill").string())) {}
  ~DrillFolder() {
    std::error_code ignored;
    if (removes_) std::filesystem::remove_all(path_, ignored);
  }
  DrillFolder(const DrillFolder&) = delete;
  DrillFolder& operator=(const DrillFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  static std::string temporary_name() {
    return (std::filesystem::temp_directory_path() / fmt::format("foresail-stress-{}", getpid())).string();
  }
  bool removes_;
  std::filesystem::path path_;
};

void check_minutes(const StressOptions& options) {
  if (std::isfinite(options.minutes) && options.minutes > 0 && options.minutes <= 24 * 60) return;
  throw_bad_input("--minutes", fmt::format("{} is not between 0 and 1440", options.minutes),
                  "give the length of the test");
}

}  // namespace

RankCount check_stress(const StressOptions& options) {
  check_minutes(options);
  if (!options.out.empty()) require_creatable_folder(options.out);
  return check_setup(options.plan, options.data, options.device);
}

StressResult stress(const StressOptions& options, Communicator& communicator) {
  check_minutes(options);
  const auto begin = Clock::now();
  RunSetup setup = open_run(options.plan, options.data, options.device, communicator);
  const Session& session = *setup.session;
  initialise(session.programs.train, session.slices, static_cast<uint64_t>(setup.plan.job.seed), session.arena->data());
  // The schedule of the real run; a test longer than it goes on at its last learning rate.
  const int64_t total_steps = std::max<int64_t>(setup.plan.steps, kWarmUpSteps + kLeastSteps + 1);
  const double seconds = 60 * options.minutes * (options.drills ? 1 - kDrillShare : 1);
  if (communicator.rank() == 0)
    log_info("stress: {} for {:.0f} s", short_text(setup.plan.strategy), 60 * options.minutes);
  if (communicator.rank() == 0 && !setup.plan.job.batch_ramp.empty()) {
    log_info("stress: steps of the full {} sequences; the smaller ones of the batch ramp ({}) are not run",
             setup.plan.job.global_batch, batch_ramp_text(setup.plan.job));
  }
  const Measured measured = run_steps(setup, communicator, seconds, total_steps);
  const double step_seconds = largest(communicator, session, median_of(measured.step_seconds));
  const double data_seconds = largest(communicator, session, median_of(measured.data_seconds));

  StressResult result;
  result.plan = options.plan.string();
  result.checks = {judge_step_seconds(setup.plan.predicted, step_seconds),
                   judge_arena(setup.plan.predicted, setup.arena_bytes),
                   judge_resident(setup.plan.predicted, measured.resident_bytes),
                   check_data(setup, step_seconds, data_seconds), check_loss(measured)};
  if (options.drills) {
    const DrillFolder folder(options.out, {&communicator, world_group(session)});
    add_drill_checks(drill_checkpoint(setup, communicator, folder.path(), measured.steps, total_steps + 1),
                     result.checks);
  }
  explain_lone_step_failure(result.checks);
  result.verdict = all_passed(result.checks) ? "pass" : "fail";
  result.seconds = seconds_since(begin);
  if (communicator.rank() == 0 && !options.out.empty()) {
    create_folder(options.out);
    write_file_atomically(options.out / "stress.json", stress_result_to_json(result));
  }
  return result;
}

std::string stress_table(const StressResult& result) {
  return checks_table(result.checks) + fmt::format("verdict: {} ({:.0f} s)\n", result.verdict, result.seconds);
}

}  // namespace foresail
