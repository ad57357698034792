// Supervision of one mpirun. The tree of processes:
//
//   foresail (the user's; forwards signals)
//     mpirun (its own process group, so that Ctrl-C reaches only foresail; told by the kernel when foresail dies)
//       ranks (killed by the kernel when mpirun dies)
//
// SIGUSR1 is the one signal that mpirun passes on without acting on it, so it is what "please stop" travels as.
#include "runtime/launch/launch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>

#include "core/log.h"
#include "runtime/launch/channel.h"
#include "runtime/launch/command.h"
#include "runtime/launch/line_reader.h"
#include "runtime/launch/outcome.h"
#include "runtime/launch/process_tree.h"

namespace foresail {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kPollInterval{200};
constexpr std::chrono::seconds kReadyPatience{10};  ///< a request to stop waits so long for ranks to be able to hear it
constexpr std::chrono::seconds kKillPatience{5};    ///< mpirun may take so long to end its ranks by itself
constexpr size_t kKeptLines = 200;

// Signal handlers reach only process-wide state: the write end of the pipe that wakes the supervisor.
volatile sig_atomic_t wake_descriptor = -1;

void wake_supervisor(int signal) {
  const int saved = errno;
  const char byte = static_cast<char>(signal);
  if (write(wake_descriptor, &byte, 1) < 0) errno = saved;  // a full pipe wakes it as well
  errno = saved;
}

/// Routes SIGINT, SIGTERM, SIGHUP and SIGCHLD into a pipe for as long as it lives.
class SignalPipe {
 public:
  SignalPipe() {
    if (pipe2(ends_, O_CLOEXEC | O_NONBLOCK) != 0)
      throw_environment("pipe", std::strerror(errno), "close other programs");
    wake_descriptor = ends_[1];
    struct sigaction action = {};
    action.sa_handler = wake_supervisor;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &action, &before_[i]);
  }
  ~SignalPipe() {
    for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before_[i], nullptr);
    wake_descriptor = -1;
    close(ends_[0]);
    close(ends_[1]);
  }
  SignalPipe(const SignalPipe&) = delete;
  SignalPipe& operator=(const SignalPipe&) = delete;

  int descriptor() const { return ends_[0]; }
  /// How many requests to stop arrived since the last call.
  int take_stop_requests() {
    int requests = 0;
    for (char signal; read(ends_[0], &signal, 1) == 1;) requests += signal != SIGCHLD;
    return requests;
  }

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};
  int ends_[2] = {-1, -1};
  struct sigaction before_[std::size(kSignals)];
};

/// False if not all bytes went out.
bool write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

/// Read end of a pipe from mpirun; the write end goes to `child_end`.
int make_pipe(int& child_end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw_environment("pipe", std::strerror(errno), "close other programs");
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  child_end = ends[1];
  return ends[0];
}

int open_fifo(const std::string& path) {
  // Opened for reading and writing, it never reports an end between rank 0's opening and closing.
  const int descriptor = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) throw_environment(path, std::strerror(errno), "set TMPDIR to a folder on a local disk");
  return descriptor;
}

class Supervisor {
 public:
  explicit Supervisor(const LaunchRequest& request) : request_(request) {}
  /// Kills whatever is left: an exception must not leave orphans.
  ~Supervisor() {
    if (mpirun_ > 0) kill_everything();
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  void start(const std::vector<std::string>& command);
  RunRemains watch();
  const std::string& channel() const { return folder_.path(); }

 private:
  void poll_once();
  void read_streams();
  void note_stop_requests(int requests);
  void forward_stop_when_ready();
  void kill_when_overdue();
  void kill_everything();
  bool has_ended();

  LaunchRequest request_;
  ChannelFolder folder_;
  SignalPipe signals_;
  std::unique_ptr<LineReader> rank_output_, rank_log_, mpirun_output_, mpirun_log_;
  pid_t mpirun_ = 0;
  RunRemains remains_;
  std::deque<std::string> rank_zero_lines_;
  Clock::time_point started_;
  std::optional<Clock::time_point> stop_asked_, killed_;
  bool stop_forwarded_ = false;
  bool insisted_ = false;
};

void Supervisor::start(const std::vector<std::string>& command) {
  remains_.channel = folder_.path();
  remains_.ranks = request_.ranks;
  remains_.mend = request_.mend;
  rank_output_ = std::make_unique<LineReader>(open_fifo(output_pipe(folder_.path())));
  rank_log_ = std::make_unique<LineReader>(open_fifo(log_pipe(folder_.path())));
  int output_end = -1, log_end = -1;
  mpirun_output_ = std::make_unique<LineReader>(make_pipe(output_end));
  mpirun_log_ = std::make_unique<LineReader>(make_pipe(log_end));
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  started_ = Clock::now();
  const pid_t parent = getpid();
  mpirun_ = fork();
  if (mpirun_ == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127);
    const int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, STDIN_FILENO);
    dup2(output_end, STDOUT_FILENO);
    dup2(log_end, STDERR_FILENO);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(output_end);
  close(log_end);
  if (mpirun_ < 0) {
    mpirun_ = 0;
    throw_environment("mpirun", std::string("no process could be started: ") + std::strerror(errno),
                      "close other programs or raise the limit of processes (ulimit -u)");
  }
}

void Supervisor::read_streams() {
  const auto nothing = [](std::string_view) {};
  const auto to_output = [&](std::string_view bytes) {
    if (!write_all(STDOUT_FILENO, bytes)) remains_.output_lost = true;  // said at the end: the run goes on
  };
  const auto to_log = [](std::string_view bytes) { write_all(STDERR_FILENO, bytes); };
  const auto keep_rank_line = [&](std::string_view line) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
    rank_zero_lines_.emplace_back(line);
    if (rank_zero_lines_.size() > kKeptLines) rank_zero_lines_.pop_front();
  };
  const auto keep_mpirun_line = [&](std::string_view line) {
    if (remains_.mpirun_lines.size() < kKeptLines) remains_.mpirun_lines.emplace_back(line);
  };
  rank_output_->drain(to_output, nothing);
  rank_log_->drain(to_log, keep_rank_line);
  mpirun_output_->drain(to_output, nothing);  // rank 0 on another host has no other way
  mpirun_log_->drain(nothing, keep_mpirun_line);
}

void Supervisor::poll_once() {
  std::vector<pollfd> sources = {{signals_.descriptor(), POLLIN, 0}};
  for (const auto* reader : {&rank_output_, &rank_log_, &mpirun_output_, &mpirun_log_}) {
    if (!(*reader)->ended()) sources.push_back({(*reader)->descriptor(), POLLIN, 0});
  }
  poll(sources.data(), sources.size(), static_cast<int>(kPollInterval.count()));
}

void Supervisor::note_stop_requests(int requests) {
  if (requests == 0) return;
  insisted_ = insisted_ || stop_asked_ || requests > 1;
  if (!stop_asked_) stop_asked_ = Clock::now();
  remains_.stop_was_requested = true;
}

void Supervisor::forward_stop_when_ready() {
  if (!stop_asked_ || stop_forwarded_) return;
  // Before its handler stands a rank would die of the signal, and mpirun's own is not there from the first moment
  // either.
  if (!all_ready(channel(), request_.ranks) && Clock::now() - started_ < kReadyPatience) return;
  kill(mpirun_, SIGUSR1);
  stop_forwarded_ = true;
}

void Supervisor::kill_when_overdue() {
  const auto now = Clock::now();
  if (!stop_asked_) return;
  if (!killed_ && (insisted_ || now - *stop_asked_ > std::chrono::duration<double>(request_.grace_seconds))) {
    remains_.killed_because =
        insisted_ ? "they were asked to stop more than once"
                  : fmt::format("they did not stop within {:g} s of being asked", request_.grace_seconds);
    killed_ = now;
    kill(mpirun_, SIGTERM);  // it ends its ranks on all hosts and removes their shared memory
  }
  if (killed_ && now - *killed_ > kKillPatience) kill_everything();
}

void Supervisor::kill_everything() {
  for (pid_t rank : ranks_of_run(channel())) {
    if (rank != mpirun_) kill(rank, SIGKILL);
  }
  if (mpirun_ <= 0) return;
  kill(mpirun_, SIGKILL);
  waitpid(mpirun_, &remains_.wait_status, 0);
  mpirun_ = 0;
}

bool Supervisor::has_ended() {
  if (mpirun_ == 0) return true;
  if (waitpid(mpirun_, &remains_.wait_status, WNOHANG) != mpirun_) return false;
  mpirun_ = 0;
  return true;
}

RunRemains Supervisor::watch() {
  do {
    poll_once();
    read_streams();
    note_stop_requests(signals_.take_stop_requests());
    forward_stop_when_ready();
    kill_when_overdue();
  } while (!has_ended());
  kill_everything();  // ranks that outlived a killed mpirun
  read_streams();
  const auto keep = [&](std::string_view line) { remains_.mpirun_lines.emplace_back(line); };
  mpirun_log_->finish(keep);
  remains_.rank_zero_lines.assign(rank_zero_lines_.begin(), rank_zero_lines_.end());
  for (const std::string& line : remains_.mpirun_lines) log_message(LogLevel::debug, "mpirun: " + line);
  return remains_;
}

/// More ranks than this machine could ever hold would start to swap, or keep mpirun busy for hours, before they fail.
void require_memory(const LaunchRequest& request) {
  const double host = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  const double needed = static_cast<double>(request.bytes_per_rank) * request.ranks;
  if (needed <= host) return;
  throw_environment("this machine",
                    fmt::format("{} ranks of {:.3g} GiB cannot start in its {:.3g} GiB of memory", request.ranks,
                                static_cast<double>(request.bytes_per_rank) / 0x1p30, host / 0x1p30),
                    "plan for fewer devices, or name more hosts with --hosts");
}

}  // namespace

Exit launch_ranks(const LaunchRequest& request) {
  if (request.hostfile.empty()) require_memory(request);
  ensure(request.ranks >= 2, "a run of one rank needs no launcher");
  ensure(request.threads_per_rank >= 1, "a rank has at least one thread");
  const Hosts hosts = request.hostfile.empty() ? Hosts{} : read_hostfile(request.hostfile);
  if (hosts.slots > 0 && request.ranks > hosts.slots) {
    throw_bad_input(
        request.hostfile,
        "its " + std::to_string(hosts.slots) + " slots cannot hold " + std::to_string(request.ranks) + " ranks",
        "add hosts or slots, or plan for fewer devices");
  }
  const std::string mpirun = find_mpirun();
  const std::string program = request.program.empty() ? own_executable() : request.program;
  Supervisor supervisor(request);
  supervisor.start(mpirun_command(request, detect_host_facts(), hosts, mpirun, program, supervisor.channel()));
  const RunRemains remains = supervisor.watch();
  const Exit exit = outcome_of(remains);
  if (remains.output_lost && exit == Exit::done) {
    throw_environment("standard output", "the result could not be written: its disk is full or it was closed",
                      "redirect it to a place with space; the run itself is complete");
  }
  return exit;
}

}  // namespace foresail
