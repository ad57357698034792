#include "runtime/launch/channel.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

namespace foresail {
namespace {

constexpr char kSeparator = '\x1f';
constexpr std::string_view kMark =
    "\x1e"
    "foresail-error";

std::string on_one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20; }, ' ');
  return text;
}

std::optional<int> to_int(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<Exit> to_exit(std::string_view text) {
  for (Exit exit : {Exit::done, Exit::answer_is_no, Exit::bad_input, Exit::environment_failed, Exit::stopped}) {
    if (to_int(text) == static_cast<int>(exit)) return exit;
  }
  return std::nullopt;
}

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Writes aside and moves into place, so that the launcher never reads half a report. `keep_first`: a later report
/// loses.
bool put(const std::string& channel, const std::string& name, const std::string& content, bool keep_first) {
  const std::string aside = channel + "/" + name + "." + std::to_string(getpid());
  {
    std::ofstream file(aside, std::ios::binary);
    file << content;
    file.flush();
    if (!file) return false;
  }
  const std::string path = channel + "/" + name;
  if (!keep_first) return rename(aside.c_str(), path.c_str()) == 0;
  const bool linked = link(aside.c_str(), path.c_str()) == 0 || errno == EEXIST;
  unlink(aside.c_str());
  return linked;
}

}  // namespace

std::string output_pipe(const std::string& channel) { return channel + "/output"; }
std::string log_pipe(const std::string& channel) { return channel + "/log"; }
std::string rank_log(const std::string& channel, int rank) {
  return channel + "/rank-" + std::to_string(rank) + ".log";
}

std::string error_line(const RankError& error) {
  std::string line(kMark);
  for (const std::string& part : {std::to_string(error.rank), std::to_string(static_cast<int>(error.exit)), error.what,
                                  error.cause, error.mend}) {
    line += kSeparator + on_one_line(part);
  }
  return line;
}

std::optional<RankError> parse_error_line(std::string_view line) {
  if (!line.starts_with(kMark)) return std::nullopt;
  std::vector<std::string> parts;
  std::istringstream stream{std::string(line.substr(kMark.size()))};
  for (std::string part; std::getline(stream, part, kSeparator);) parts.push_back(part);
  if (parts.size() == 5) parts.emplace_back();  // getline drops an empty mend at the end
  if (parts.size() != 6) return std::nullopt;
  const auto rank = to_int(parts[1]);
  const auto exit = to_exit(parts[2]);
  if (!rank || !exit) return std::nullopt;
  return RankError{*rank, *exit, parts[3], parts[4], parts[5]};
}

bool report_error(const std::string& channel, const RankError& error) {
  return put(channel, "error", error_line(error), true);
}

void report_outcome(const std::string& channel, Exit exit) {
  put(channel, "outcome", std::to_string(static_cast<int>(exit)), false);
}

void report_ready(const std::string& channel, int rank) { put(channel, "ready-" + std::to_string(rank), "", false); }

std::optional<RankError> reported_error(const std::string& channel) {
  return parse_error_line(content_of(channel + "/error"));
}

std::optional<Exit> reported_outcome(const std::string& channel) { return to_exit(content_of(channel + "/outcome")); }

bool all_ready(const std::string& channel, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (access((channel + "/ready-" + std::to_string(rank)).c_str(), F_OK) != 0) return false;
  }
  return true;
}

std::string last_words(const std::string& channel, int rank) {
  std::istringstream stream(content_of(rank_log(channel, rank)));
  std::string last;
  for (std::string line; std::getline(stream, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = on_one_line(line);
  }
  return last;
}

ChannelFolder::ChannelFolder() {
  std::error_code ignored;
  const std::filesystem::path base = std::filesystem::temp_directory_path(ignored);
  path_ = (base.empty() ? std::filesystem::path("/tmp") : base) / "foresail-XXXXXX";
  if (mkdtemp(path_.data()) == nullptr) {
    throw_environment(path_, std::strerror(errno), "make the folder for temporary files writable, or set TMPDIR");
  }
  for (const std::string& pipe : {output_pipe(path_), log_pipe(path_)}) {
    if (mkfifo(pipe.c_str(), 0600) != 0) {
      const int error = errno;
      std::filesystem::remove_all(path_, ignored);
      throw_environment(pipe, std::strerror(error), "set TMPDIR to a folder on a local disk");
    }
  }
}

ChannelFolder::~ChannelFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace foresail
