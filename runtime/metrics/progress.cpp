#include "runtime/metrics/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/human.h"

namespace foresail {
namespace {

constexpr size_t kRecentSteps = 20;
constexpr double kTerminalIntervalSeconds = 0.1;

}  // namespace

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "unknown";
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  constexpr double kLongestSeconds = 1e12;  // beyond it the number is no duration anybody waits for
  const auto whole = static_cast<int64_t>(std::llround(std::min(seconds, kLongestSeconds)));
  if (whole < 3600) return fmt::format("{} min {:02d} s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{} h {:02d} min", whole / 3600, whole % 3600 / 60);
  return fmt::format("{} d {} h", whole / 86400, whole % 86400 / 3600);
}

std::string progress_text(const ProgressState& state) {
  std::string text = fmt::format("step {}/{}  loss {:.4f}", state.step, state.total_steps, state.loss);
  if (state.validation_loss) text += fmt::format("  validation {:.4f}", *state.validation_loss);
  if (state.tokens_per_second > 0) text += "  " + figure_text(state.tokens_per_second) + " tokens/s";
  if (state.mfu) text += fmt::format("  MFU {:.1f} %", 100 * *state.mfu);
  return text + "  " + duration_text(state.remaining_seconds) + " left";
}

ProgressLine::ProgressLine(std::FILE* out, bool terminal, double interval_seconds)
    : out_(out), terminal_(terminal), interval_seconds_(terminal ? kTerminalIntervalSeconds : interval_seconds) {}

bool ProgressLine::is_terminal(std::FILE* out) { return ::isatty(::fileno(out)) == 1; }

ProgressLine::~ProgressLine() { finish(); }

double ProgressLine::mean_step_seconds() const {
  if (recent_seconds_.empty()) return 0;
  return std::accumulate(recent_seconds_.begin(), recent_seconds_.end(), 0.0) /
         static_cast<double>(recent_seconds_.size());
}

void ProgressLine::update(ProgressState state, double step_seconds, double now_seconds) {
  if (recent_seconds_.size() == 1 && first_) recent_seconds_.clear(), first_ = false;
  recent_seconds_.push_back(step_seconds);
  if (recent_seconds_.size() > kRecentSteps) recent_seconds_.pop_front();
  const double tokens = state.tokens_per_second * step_seconds;
  if (tokens > 0) state.tokens_per_second = tokens / mean_step_seconds();
  state.remaining_seconds = mean_step_seconds() * static_cast<double>(state.total_steps - state.step);
  const bool due = !last_shown_seconds_ || now_seconds - *last_shown_seconds_ >= interval_seconds_ ||
                   state.step == state.total_steps || state.validation_loss != shown_validation_loss_;
  if (!due) return;
  shown_validation_loss_ = state.validation_loss;
  last_shown_seconds_ = now_seconds;
  const std::string text = progress_text(state);
  if (terminal_) {
    const size_t blanks = shown_width_ > text.size() ? shown_width_ - text.size() : 0;
    std::fprintf(out_, "\r%s%*s", text.c_str(), static_cast<int>(blanks), "");
    shown_width_ = text.size();
    line_open_ = true;
  } else {
    std::fprintf(out_, "%s\n", text.c_str());
  }
  std::fflush(out_);
}

void ProgressLine::finish() {
  if (line_open_) std::fputc('\n', out_), std::fflush(out_);
  line_open_ = false;
  shown_width_ = 0;
}

}  // namespace foresail
