#include "workflow/run_log.h"

#include <chrono>
#include <cstdio>

#include <fmt/format.h>

#include "core/file.h"
#include "core/log.h"

namespace foresail {
namespace {

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::filesystem::path board_folder(const std::filesystem::path& run) {
  const std::filesystem::path folder = run / "tensorboard";
  create_folder(folder);
  return folder;
}

}  // namespace

std::filesystem::path metrics_path(const std::filesystem::path& run) { return run / "metrics.jsonl"; }
std::filesystem::path events_path(const std::filesystem::path& run) { return run / "events.jsonl"; }

RunLog::RunLog(const std::filesystem::path& run, const RunSetup& setup, int64_t last_step, bool terminal)
    : run_(run),
      setup_(setup),
      last_step_(last_step),
      events_(events_path(run)),
      board_(board_folder(run)),
      progress_(stderr, terminal) {}

void RunLog::on_step(const StepRecord& record) {
  const auto tokens = static_cast<double>(record.global_batch * setup_.session->programs.train.sequence_length);
  const double mfu = mfu_of(setup_, record.seconds, record.global_batch);
  StepLine line{.step = record.step,
                .loss = record.loss,
                .grad_norm = record.grad_norm,
                .learning_rate = record.learning_rate,
                .tokens = record.tokens,
                .step_seconds = record.seconds,
                .tokens_per_second = tokens / record.seconds,
                .mfu = mfu > 0 ? std::optional(mfu) : std::nullopt,
                .resident_bytes = {},
                .validation_loss = record.validation_loss,
                .auxiliary_loss = record.auxiliary_loss,
                .skipped = record.skipped};
  if (metrics_ != nullptr) metrics_->append(line);
  std::vector<std::pair<std::string, double>> scalars{{"loss", record.loss},
                                                      {"grad_norm", record.grad_norm},
                                                      {"learning_rate", record.learning_rate},
                                                      {"tokens_per_second", line.tokens_per_second}};
  if (record.auxiliary_loss) scalars.emplace_back("auxiliary_loss", *record.auxiliary_loss);
  if (record.validation_loss) scalars.emplace_back("validation_loss", *record.validation_loss);
  board_.append(record.step, scalars);
  progress_.update({.step = record.step,
                    .total_steps = last_step_,
                    .loss = record.loss,
                    .validation_loss = record.validation_loss,
                    .mfu = line.mfu,
                    .tokens_per_second = line.tokens_per_second,
                    .remaining_seconds = 0},
                   record.seconds, steady_seconds());
}

void RunLog::on_event(const RunEvent& event) {
  if (event.kind == "start" || event.kind == "resume") {
    metrics_ = std::make_unique<MetricsLog>(metrics_path(run_), event.step);
  }
  Event entry{.kind = event.kind, .step = event.step, .text = event.text, .details = {}, .numbers = {}};
  if (!event.path.empty()) entry.details["path"] = event.path;
  if (event.seconds > 0) entry.numbers["seconds"] = event.seconds;
  events_.append(entry);
  if (event.kind == "checkpoint" || event.kind == "evaluation" || (event.kind == "finish" && event.text.empty())) {
    return;
  }
  progress_.finish();
  if (event.kind == "step_skipped")
    log_warning("step {}: {}", event.step, event.text);
  else if (event.kind == "finish")
    log_info("the run is at step {} already; nothing to do", event.step);
  else if (event.kind == "stop")
    log_info("stop at step {}; go on with --resume", event.step);
  else
    log_info("{} at step {}{}{}", event.kind, event.step, event.text.empty() ? "" : ": ", event.text);
}

}  // namespace foresail
