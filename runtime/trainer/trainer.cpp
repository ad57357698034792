#include "runtime/trainer/trainer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/save.h"
#include "runtime/checkpoint/transfer.h"
#include "runtime/executor/resident.h"
#include "runtime/trainer/start.h"

namespace foresail {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kLossesKept = 16;  // in a checkpoint

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class Trainer {
 public:
  Trainer(Session& session, Communicator& communicator, const TrainerOptions& options)
      : session_(session),
        communicator_(communicator),
        options_(options),
        ranks_{&communicator, world_group(session)},
        program_(session.programs.train),
        has_experts_(session.model.moe.experts > 0),
        sample_(static_cast<size_t>(2 * session.programs.train.sequence_length)) {}

  TrainerReport run();

 private:
  bool leads() const { return communicator_.rank() == 0; }
  StepRecord one_step(int64_t step);
  StepMetrics repeated(int64_t step, const StepMetrics& first, Executor* fallback);
  void judge(const StepRecord& record);
  void compare_replayed(const StepRecord& record);
  bool asked_to_stop();
  void checkpoint(int64_t step);
  void event(const RunEvent& event) const {
    if (leads() && options_.on_event) options_.on_event(event);
  }
  bool due(int64_t interval, int64_t step) const { return interval > 0 && step % interval == 0; }
  void evaluate(StepRecord& record);
  void note_batch(const StepRecord& record);

  Session& session_;
  Communicator& communicator_;
  const TrainerOptions& options_;
  CheckpointRanks ranks_;
  const Program& program_;  ///< for what all Programs of the set share
  const bool has_experts_;
  int64_t samples_ = 0;          ///< consumed so far by all ranks
  std::vector<int32_t> sample_;  ///< room for one: fill_batch
  TrainerReport report_;
  StartState start_;
  std::vector<StepLoss> losses_;
  int64_t bad_steps_ = 0;
  LossScaler loss_scaler_;
};

/// Some rank had no room for rows that its routers sent to experts; all left the update out. The same batch again with room
/// for all of them: parameters, data and the step's inputs are as the first try found them.
StepMetrics Trainer::repeated(int64_t step, const StepMetrics& first, Executor* fallback) {
  const std::string rows = fmt::format("{:.0f} rows for experts found no room (moe_bound = {})", first.overflow,
                                       session_.strategy.moe_bound);
  if (fallback == nullptr) {
    throw_environment(fmt::format("step {}", step), rows, "report this: the Program was compiled to have room for all");
  }
  event({"expert_overflow", step, rows + ": the step is repeated with room for all", "", 0});
  session_.switch_to(*fallback);
  fallback->step();
  const StepMetrics metrics = fallback->metrics();
  ensure(metrics.overflow == 0, "the fallback has room for whatever routers do");
  return metrics;
}

StepRecord Trainer::one_step(int64_t step) {
  const auto [program, executor, fallback] = session_.step_after(samples_);
  const int64_t batch = global_batch_of(program);
  session_.switch_to(executor);
  const auto begin = Clock::now();
  const int64_t counted = counted_targets(program, samples_, options_.training);
  fill_batch(executor, program, session_.place, samples_, options_.training, sample_);
  samples_ += batch;
  executor.step_inputs() = step_inputs_at(session_.job, step, options_.total_steps, counted);
  executor.step_inputs().loss_scale = loss_scaler_.scale;
  executor.step();
  StepMetrics metrics = executor.metrics();
  if (metrics.overflow > 0) metrics = repeated(step, metrics, fallback);
  return {.step = step,
          .tokens = samples_ * program.sequence_length,
          .global_batch = batch,
          .loss = metrics.loss,
          .grad_norm = metrics.grad_norm,
          .clip_factor = metrics.clip_factor,
          .learning_rate = executor.step_inputs().learning_rate,
          .auxiliary_loss = has_experts_ ? std::optional(metrics.auxiliary_loss) : std::nullopt,
          .seconds = seconds_since(begin),
          .skipped = !std::isfinite(metrics.grad_norm) || !std::isfinite(metrics.loss),
          .validation_loss = {}};
}

/// Seconds are kept of one batch size: those of others say nothing about it.
void Trainer::note_batch(const StepRecord& record) {
  if (record.global_batch != report_.global_batch) {
    if (report_.global_batch != 0) {
      event({"batch_ramp", record.step, fmt::format("steps of {} sequences from here on", record.global_batch), "", 0});
    }
    report_.global_batch = record.global_batch;
    report_.step_seconds.clear();
  }
  report_.step_seconds.push_back(record.seconds);
}

/// Metrics are reduced over all ranks, so all decide alike.
void Trainer::judge(const StepRecord& record) {
  const LossScaler used = std::exchange(loss_scaler_, after_step(loss_scaler_, session_.job, record.skipped));
  if (record.skipped && std::isfinite(record.loss) && can_shrink(used, session_.job)) {
    event({"loss_scale", record.step,
           fmt::format("a gradient overflowed: scale {:g} -> {:g}, the update was left out", used.scale,
                       loss_scaler_.scale),
           "", 0});
    return;
  }
  if (!record.skipped) {
    bad_steps_ = 0;
    losses_.push_back({record.step, record.loss});
    if (losses_.size() > kLossesKept) losses_.erase(losses_.begin());
    return;
  }
  ++bad_steps_;
  event({"step_skipped", record.step,
         fmt::format("loss {}, gradient norm {}: the update was left out", record.loss, record.grad_norm), "", 0});
  if (bad_steps_ >= options_.most_bad_steps) {
    throw_environment(fmt::format("step {}", record.step),
                      fmt::format("{} steps in a row without a finite loss and gradient", bad_steps_),
                      "lower the learning rate, or resume from an older checkpoint with --resume=step-N");
  }
}

void Trainer::compare_replayed(const StepRecord& record) {
  const auto recorded = options_.recorded_losses.find(record.step);
  if (recorded == options_.recorded_losses.end() || start_.checkpoint.empty() || !start_.same_next_batch ||
      record.step != start_.step + 1) {
    return;
  }
  compare_losses(fmt::format("step {}: replayed loss", record.step), recorded->second, record.loss,
                 options_.recorded_by_same_plan, program_.precision.activation);
  event({"resume_verified", record.step, fmt::format("the replayed step has the recorded loss {:.9g}", record.loss),
         start_.checkpoint, 0});
}

bool Trainer::asked_to_stop() {
  double asked = options_.stop_requested && options_.stop_requested() ? 1 : 0;
  communicator_.all_reduce(&asked, 1, DType::f64, ReduceKind::max, ranks_.world);
  return asked != 0;
}

void Trainer::checkpoint(int64_t step) {
  RunState state = options_.identity;
  state.step = step;
  state.samples_consumed = samples_;
  state.losses = losses_;
  state.notes[kBatchNote] = std::to_string(global_batch_of(program_));
  state.notes[kNextBatchNote] = std::to_string(global_batch_of(session_.step_after(samples_).program));
  state.notes[kLossScaleNote] = to_text(loss_scaler_);
  state.notes[kSequenceNote] = std::to_string(program_.sequence_length);
  if (!start_.source_config.empty()) state.notes[kConfigNote] = start_.source_config;
  state.notes[kProbeNote] = probe_loss(session_, options_, samples_);
  const auto segments = segment_views(program_, session_.slices, session_.arena->data());
  const SaveResult saved = save_checkpoint({.folder = checkpoints_folder(options_.run),
                                            .state = state,
                                            .segments = segments,
                                            .keep = std::max<int64_t>(1, session_.job.checkpoints_kept)},
                                           ranks_);
  report_.checkpoint = saved.path.string();
  event({"checkpoint", step, fmt::format("{} bytes, parameters {}", saved.bytes, saved.parameters_digest),
         report_.checkpoint, saved.seconds});
}

/// Evaluations can be long: a stop request ends one between two batches, and there is no validation loss then. A run
/// whose last step is made is finished all the same.
void Trainer::evaluate(StepRecord& record) {
  const auto begin = Clock::now();
  record.validation_loss = evaluate_loss(session_, options_.validation, 0, session_.job.evaluation_batches,
                                         [this] { return asked_to_stop(); });
  if (!record.validation_loss) {
    report_.stopped = record.step != options_.stop_after;
    event({"evaluation_stopped", record.step, "by a stop request", "", seconds_since(begin)});
    return;
  }
  report_.validation_loss = record.validation_loss;
  event({"evaluation", record.step, fmt::format("validation loss {:.6f}", *record.validation_loss), "",
         seconds_since(begin)});
}

TrainerReport Trainer::run() {
  start_ = start_run(session_, ranks_, options_);
  losses_ = start_.losses;
  samples_ = start_.samples;
  loss_scaler_ = start_.loss_scaler;
  report_.first_step = start_.step + 1;
  report_.last_step = start_.step;
  report_.checkpoint = start_.checkpoint;
  if (!losses_.empty()) report_.loss = losses_.back().loss;
  for (int64_t step = start_.step + 1; step <= options_.stop_after && !report_.stopped; ++step) {
    StepRecord record = one_step(step);
    compare_replayed(record);
    judge(record);
    report_.last_step = step;
    report_.loss = record.loss;
    note_batch(record);
    const bool last = step == options_.stop_after;
    report_.stopped = asked_to_stop() && !last;
    const bool evaluates = options_.validation && session_.job.evaluation_batches > 0 && !report_.stopped;
    if (evaluates && (last || due(session_.job.evaluation_interval_steps, step))) evaluate(record);
    if (leads() && options_.on_step) options_.on_step(record);
    if (last || report_.stopped || due(session_.job.checkpoint_interval_steps, step)) checkpoint(step);
  }
  report_.tokens = samples_ * program_.sequence_length;
  double resident = static_cast<double>(resident_bytes());
  communicator_.all_reduce(&resident, 1, DType::f64, ReduceKind::max, ranks_.world);
  report_.resident_bytes = static_cast<int64_t>(resident);
  const std::string note = report_.step_seconds.empty() ? "the run is there already, nothing to do" : "";
  event({report_.stopped ? "stop" : "finish", report_.last_step, note, report_.checkpoint, 0});
  return report_;
}

}  // namespace

std::optional<double> evaluate_loss(Session& session, const SampleReader& read, int64_t first, int64_t batches,
                                    const std::function<bool()>& stop) {
  Executor& executor = *session.evaluate;
  const Program& program = session.programs.evaluate;
  const int64_t batch = global_batch_of(program);
  std::vector<int32_t> sample(static_cast<size_t>(2 * program.sequence_length));
  session.switch_to(executor);
  double sum = 0, weights = 0;
  for (int64_t i = 0; i < batches; ++i) {
    if (stop && stop()) return std::nullopt;
    const int64_t begin = first + i * batch;
    fill_batch(executor, program, session.place, begin, read, sample);
    const int64_t counted = counted_targets(program, begin, read);
    executor.step_inputs() = step_inputs_at(session.job, 1, 1, counted);
    executor.step();
    // A batch weighs what it counts; without a loss mask all weigh exactly 1.
    const double weight = static_cast<double>(counted) / static_cast<double>(batch * program.sequence_length);
    sum += weight * executor.metrics().loss;
    weights += weight;
  }
  return weights > 0 ? sum / weights : 0;
}

TrainerReport run_training(Session& session, Communicator& communicator, const TrainerOptions& options) {
  return Trainer(session, communicator, options).run();
}

}  // namespace foresail
