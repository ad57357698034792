// What a run leaves behind as it goes: metrics.jsonl (one line per optimizer step) and events.jsonl (what happened besides).
// Lines are written whole, one write each, so that a killed run loses at most the line in the making.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/io/posix_file.h"

namespace foresail {

/// One optimizer step. Numbers that are not finite, and optionals without a value, are null in the file.
struct StepLine {
  int64_t step = 0;
  double loss = 0, grad_norm = 0, learning_rate = 0;
  int64_t tokens = 0;  ///< trained on since the start of the run
  double step_seconds = 0, tokens_per_second = 0;
  std::optional<double> mfu;
  std::optional<int64_t> resident_bytes;  ///< of the rank that holds most
  std::optional<double> validation_loss;  ///< measured after this step
  std::optional<double> auxiliary_loss;   ///< of routers
  bool skipped = false;                   ///< the update was left out

  bool operator==(const StepLine&) const = default;
};

std::string step_line_to_json(const StepLine& line);  ///< one line, without its end
/// Throws bad_input. A null loss or gradient norm reads as NaN.
StepLine step_line_from_json(std::string_view text, const std::string& source);

/// All complete lines; empty if the file does not exist. A last line without its end (a killed run) is left out; any other
/// damage is bad_input naming the line.
std::vector<StepLine> read_metrics(const std::filesystem::path& path);

class MetricsLog {
 public:
  /// Continues after step `last_step`: lines of later steps, and a torn last line, are cut off in one step. 0: from the
  /// start. Throws bad_input for a damaged file, environment_failed if the file cannot be written.
  MetricsLog(const std::filesystem::path& path, int64_t last_step);
  void append(const StepLine& line);

 private:
  PosixFile file_;
};

/// What happened: "checkpoint", "resume", "step_skipped", ...
struct Event {
  std::string kind;
  int64_t step = 0;
  std::string text;
  std::map<std::string, std::string> details;
  std::map<std::string, double> numbers;
};

/// Append-only over all lives of a run; a torn last line is ended first.
class EventLog {
 public:
  explicit EventLog(const std::filesystem::path& path);
  /// Adds the time (seconds since 1970).
  void append(const Event& event);

 private:
  PosixFile file_;
};

std::string event_to_json(const Event& event, double unix_seconds);

}  // namespace foresail
