// Where a run's records go: metrics.jsonl, events.jsonl, TensorBoard files and the terminal. Rank 0 only.
#pragma once

#include <filesystem>
#include <memory>

#include "runtime/metrics/metrics_log.h"
#include "runtime/metrics/progress.h"
#include "runtime/metrics/tensorboard.h"
#include "runtime/trainer/trainer.h"
#include "workflow/run_setup.h"

namespace foresail {

class RunLog {
 public:
  /// `run` exists. Lines of steps after the one that the run starts from are cut off metrics.jsonl at its first event.
  RunLog(const std::filesystem::path& run, const RunSetup& setup, int64_t last_step, bool terminal);

  void on_step(const StepRecord& record);
  void on_event(const RunEvent& event);
  void finish() { progress_.finish(); }

 private:
  std::filesystem::path run_;
  const RunSetup& setup_;
  int64_t last_step_;
  EventLog events_;
  std::unique_ptr<MetricsLog> metrics_;
  TensorBoardWriter board_;
  ProgressLine progress_;
};

std::filesystem::path metrics_path(const std::filesystem::path& run);
std::filesystem::path events_path(const std::filesystem::path& run);

}  // namespace foresail
