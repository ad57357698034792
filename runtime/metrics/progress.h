// The line that tells a person how a run is doing: rewritten in place on a terminal, now and then a plain line in a log.
#pragma once

#include <cstdint>
#include <cstdio>
#include <deque>
#include <optional>
#include <string>

namespace foresail {

struct ProgressState {
  int64_t step = 0, total_steps = 0;
  double loss = 0;
  std::optional<double> validation_loss, mfu;
  double tokens_per_second = 0;  ///< of this step; 0: not shown
  double remaining_seconds = 0;
};

/// "step 120/300  loss 2.3141  18.2 k tokens/s  MFU 41.3 %  3 min 05 s left"
std::string progress_text(const ProgressState& state);
/// "4.2 s", "3 min 05 s", "2 h 07 min", "3 d 4 h".
std::string duration_text(double seconds);

class ProgressLine {
 public:
  /// `terminal`: rewrite one line, at most ten times a second; otherwise a line of its own every `interval_seconds`, and
  /// for the first and last step and every new validation loss.
  ProgressLine(std::FILE* out, bool terminal, double interval_seconds = 10);
  /// Whether the stream is a terminal (isatty).
  static bool is_terminal(std::FILE* out);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// One finished step of `step_seconds`, `now_seconds` on any steady clock. Averages the rate over the last
  /// steps and fills what remains; the first step of a call, which is slower, counts only until there are others.
  void update(ProgressState state, double step_seconds, double now_seconds);
  /// Ends the line, so that other output starts on a new one. Called by the destructor too.
  void finish();

 private:
  double mean_step_seconds() const;

  std::FILE* out_;
  bool terminal_;
  double interval_seconds_;
  std::optional<double> last_shown_seconds_, shown_validation_loss_;
  std::deque<double> recent_seconds_;
  bool first_ = true, line_open_ = false;
  size_t shown_width_ = 0;
};

}  // namespace foresail
