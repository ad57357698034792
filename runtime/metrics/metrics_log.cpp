#include "runtime/metrics/metrics_log.h"

#include <chrono>
#include <functional>

#include "core/error.h"

namespace foresail {
namespace {

constexpr size_t kReadBytes = size_t{1} << 18;
constexpr size_t kLineLimitBytes = size_t{1} << 20;

// Calls `line(text, number, offset)` for every complete line in turn until it returns false.
using LineVisitor = std::function<bool(std::string_view text, int64_t number, int64_t offset)>;

void visit_lines(const PosixFile& file, const LineVisitor& visit) {
  std::string pending, chunk(kReadBytes, '\0');
  int64_t position = 0, line_begin = 0, number = 1;
  while (const int64_t got = file.read_some_at(position, std::as_writable_bytes(std::span(chunk)))) {
    position += got;
    std::string_view rest(chunk.data(), static_cast<size_t>(got));
    for (size_t end; (end = rest.find('\n')) != std::string_view::npos; rest.remove_prefix(end + 1)) {
      pending += rest.substr(0, end);
      if (!visit(pending, number, line_begin)) return;
      line_begin += std::ssize(pending) + 1;
      pending.clear();
      ++number;
    }
    pending += rest;
    if (pending.size() > kLineLimitBytes) {
      throw_bad_input(file.path().string() + ": line " + std::to_string(number), "is longer than 1 MiB",
                      "remove that line");
    }
  }
}

std::string place(const std::filesystem::path& path, int64_t line) {
  return path.string() + ": line " + std::to_string(line);
}

// Where the lines of steps up to `last_step` end.
int64_t bytes_to_keep(const std::filesystem::path& path, int64_t last_step) {
  if (!std::filesystem::exists(path)) return 0;
  const PosixFile file = PosixFile::open_to_read(path);
  int64_t keep = 0;
  visit_lines(file, [&](std::string_view text, int64_t number, int64_t offset) {
    if (step_line_from_json(text, place(path, number)).step > last_step) return false;
    keep = offset + std::ssize(text) + 1;
    return true;
  });
  return keep;
}

}  // namespace

std::vector<StepLine> read_metrics(const std::filesystem::path& path) {
  std::vector<StepLine> lines;
  if (!std::filesystem::exists(path)) return lines;
  visit_lines(PosixFile::open_to_read(path), [&](std::string_view text, int64_t number, int64_t) {
    lines.push_back(step_line_from_json(text, place(path, number)));
    return true;
  });
  return lines;
}

MetricsLog::MetricsLog(const std::filesystem::path& path, int64_t last_step) {
  const int64_t keep = bytes_to_keep(path, last_step);
  file_ = PosixFile::open_to_append(path);
  if (file_.size() == keep) return;
  file_.truncate(keep);
  file_.sync();
}

void MetricsLog::append(const StepLine& line) { file_.append(step_line_to_json(line) + '\n'); }

EventLog::EventLog(const std::filesystem::path& path) : file_(PosixFile::open_to_append(path)) {
  const int64_t bytes = file_.size();
  if (bytes == 0) return;
  std::byte last{};
  PosixFile::open_to_read(path).read_at(bytes - 1, std::span(&last, 1));
  if (last != std::byte{'\n'}) file_.append("\n");
}

void EventLog::append(const Event& event) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  file_.append(event_to_json(event, std::chrono::duration<double>(now).count()) + '\n');
}

}  // namespace foresail
