#include "runtime/launch/outcome.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <fmt/format.h>

#include <optional>
#include <regex>

namespace foresail {
namespace {

struct Death {
  int rank = 0;
  int number = 0;  ///< of the signal or exit code
};

/// The first line that matches; capture 1 is the rank, capture 2 the number (if the pattern has one).
std::optional<Death> find_death(const std::vector<std::string>& lines, const std::regex& pattern) {
  for (const std::string& line : lines) {
    std::smatch match;
    if (!std::regex_search(line, match, pattern)) continue;
    Death death{std::atoi(match[1].str().c_str()), 0};
    if (match.size() > 2) death.number = std::atoi(match[2].str().c_str());
    return death;
  }
  return std::nullopt;
}

std::string last_words_of(const RunRemains& remains, int rank) {
  if (rank != 0) return last_words(remains.channel, rank);
  return remains.rank_zero_lines.empty() ? "" : remains.rank_zero_lines.back();
}

std::string with_last_words(const std::string& cause, const RunRemains& remains, int rank) {
  const std::string words = last_words_of(remains, rank);
  return words.empty() ? cause : cause + " after saying '" + words + "'";
}

[[noreturn]] void throw_killed_by_signal(const RunRemains& remains, const Death& death) {
  const std::string who = "rank " + std::to_string(death.rank);
  const std::string cause =
      who + " was killed by signal " + std::to_string(death.number) + " (" + signal_name(death.number) + ")";
  switch (death.number) {
    case SIGKILL:
      throw_environment("run", cause + ", by somebody or by the kernel for lack of memory (dmesg tells)", remains.mend);
    case SIGSEGV:
    case SIGABRT:
    case SIGFPE:
    case SIGILL:
      throw_environment("run", with_last_words(cause, remains, death.rank),
                        "this is a defect of foresail: please report it with the command line");
    case SIGBUS:
      throw_environment("run", cause + ", as happens when /dev/shm or the disk of a mapped file is full",
                        "make room there; then " + remains.mend);
    default: throw_environment("run", with_last_words(cause, remains, death.rank), remains.mend);
  }
}

/// mpirun's own complaint in one line: the first line with words, without its frame.
std::string first_complaint(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    const size_t begin = line.find_first_not_of(" -*");
    if (begin != std::string::npos) return line.substr(begin);
  }
  return "it said nothing";
}

/// Ranks that ended without a report: what mpirun knows of them.
void throw_if_a_rank_died(const RunRemains& remains) {
  static const std::regex by_signal(R"(process rank (\d+) with PID \d+ on node .* exited on signal (\d+))");
  static const std::regex aborted(R"(MPI_ABORT was invoked on rank (\d+) .* errorcode (\d+))");
  static const std::regex improper(R"(process rank (\d+) with PID \d+ .* exiting improperly)");
  static const std::regex name(R"(Process name: \[\[\d+,\d+\],(\d+)\])");
  static const std::regex code(R"(Exit code:\s+()(\d+))");
  if (const auto death = find_death(remains.mpirun_lines, aborted)) {
    const std::string words = last_words_of(remains, death->rank);
    throw_environment("rank " + std::to_string(death->rank), words.empty() ? "it ended the run" : words, "");
  }
  if (const auto death = find_death(remains.mpirun_lines, by_signal)) throw_killed_by_signal(remains, *death);
  if (const auto death = find_death(remains.mpirun_lines, name)) {
    const auto exit_code = find_death(remains.mpirun_lines, code);
    const std::string number = exit_code ? std::to_string(exit_code->number) : "unknown";
    throw_environment("run",
                      with_last_words("rank " + std::to_string(death->rank) + " ended early with exit code " + number,
                                      remains, death->rank),
                      remains.mend);
  }
  if (const auto death = find_death(remains.mpirun_lines, improper)) {
    throw_environment("run",
                      with_last_words("rank " + std::to_string(death->rank) + " ended early", remains, death->rank),
                      remains.mend);
  }
}

/// Open MPI 4.1 may lose its own notice of an MPI_Abort; what a rank last said is the only trace then.
void throw_if_a_rank_spoke(const RunRemains& remains) {
  if (!all_ready(remains.channel, remains.ranks)) return;  // it failed to start
  for (int rank = remains.ranks - 1; rank >= 0; --rank) {
    const std::string words = last_words_of(remains, rank);
    if (words.empty()) continue;
    throw_environment("run", fmt::format("it was ended, or rank {} ended it, after it had said '{}'", rank, words),
                      remains.mend);
  }
  throw_environment("run", "a rank ended it without a word", remains.mend);
}

bool died_of_the_request(const RunRemains& remains) {
  static const std::regex by_signal(R"(process rank (\d+) with PID \d+ on node .* exited on signal (\d+))");
  const auto death = find_death(remains.mpirun_lines, by_signal);
  if (death) return death->number == SIGUSR1 || death->number == SIGTERM;
  return WIFSIGNALED(remains.wait_status) && WTERMSIG(remains.wait_status) == SIGUSR1;
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

Exit outcome_of(const RunRemains& remains) {
  std::optional<RankError> error = reported_error(remains.channel);
  for (const std::string& line : remains.mpirun_lines) {
    if (!error) error = parse_error_line(line);
  }
  if (error) throw Error(error->exit, error->what, error->cause, error->mend);
  if (!remains.killed_because.empty()) {
    throw Error(Exit::stopped, "run", "its ranks were killed: " + remains.killed_because, remains.mend);
  }
  if (WIFEXITED(remains.wait_status) && WEXITSTATUS(remains.wait_status) == 0) {
    if (const auto outcome = reported_outcome(remains.channel)) return *outcome;
    throw_environment("run", "it ended without an outcome: rank 0 left before its work was done", remains.mend);
  }
  if (remains.stop_was_requested && died_of_the_request(remains)) return Exit::stopped;  // before it had begun
  throw_if_a_rank_died(remains);
  if (WIFEXITED(remains.wait_status)) throw_if_a_rank_spoke(remains);
  if (WIFSIGNALED(remains.wait_status)) {
    throw_environment("mpirun",
                      "it was killed by signal " + std::to_string(WTERMSIG(remains.wait_status)) + " (" +
                          signal_name(WTERMSIG(remains.wait_status)) + ")",
                      remains.mend);
  }
  throw_environment(
      "mpirun", "it could not start the ranks: " + first_complaint(remains.mpirun_lines),
      "check that mpirun runs here by itself (mpirun -np 2 hostname), and the hosts file if one was given");
}

}  // namespace foresail
