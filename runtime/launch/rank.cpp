#include "runtime/launch/rank.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <new>

#include "runtime/launch/channel.h"

namespace foresail {
namespace {

// A signal handler can reach nothing but process-wide state.
volatile sig_atomic_t stop_flag = 0;

void note_stop(int) { stop_flag = 1; }

void install_stop_signals(std::initializer_list<int> signals, int flags) {
  struct sigaction action = {};
  action.sa_handler = note_stop;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  for (int signal : signals) sigaction(signal, &action, nullptr);
}

int number_from(const char* variable) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : -1;
}

/// Replaces a standard stream by the file; leaves it alone where the file cannot be opened (another host).
void redirect(const std::string& path, int flags, int stream) {
  const int file = open(path.c_str(), flags | O_CLOEXEC, 0600);
  if (file < 0) return;
  dup2(file, stream);
  close(file);
}

void connect_streams(const RankEnvironment& environment) {
  if (environment.rank == 0) {
    redirect(output_pipe(environment.channel), O_WRONLY, STDOUT_FILENO);
    redirect(log_pipe(environment.channel), O_WRONLY, STDERR_FILENO);
    return;
  }
  redirect("/dev/null", O_WRONLY, STDOUT_FILENO);
  if (access(environment.channel.c_str(), W_OK) == 0) {
    redirect(rank_log(environment.channel, environment.rank), O_WRONLY | O_CREAT | O_APPEND, STDERR_FILENO);
  }
}

void die_with_launcher() {
  const pid_t launcher = getppid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (launcher == 1 || getppid() != launcher) _exit(static_cast<int>(Exit::environment_failed));
}

/// Ends this process without MPI_Finalize or destructors, which would wait for peers; mpirun then ends the others.
[[noreturn]] void end_the_run(const RankEnvironment& environment, const RankError& error) {
  std::cout.flush();
  std::fflush(nullptr);
  if (!report_error(environment.channel, error)) std::cerr << error_line(error) << std::endl;
  _exit(static_cast<int>(error.exit));
}

}  // namespace

RankEnvironment detect_rank_environment() {
  RankEnvironment environment;
  const int rank = number_from("OMPI_COMM_WORLD_RANK"), size = number_from("OMPI_COMM_WORLD_SIZE");
  const char* channel = std::getenv(kChannelVariable);
  if (channel == nullptr) {
    if (size >= 0) {
      throw_bad_input("mpirun", "foresail was started by mpirun", "start it directly: it starts its own ranks");
    }
    return environment;
  }
  if (rank < 0 || size < 1) {
    throw_bad_input(kChannelVariable, "it is set, but mpirun did not start this process", "unset it");
  }
  environment.ranked = true;
  environment.rank = rank;
  environment.size = size;
  environment.channel = channel;
  environment.terminal = number_from(kTerminalVariable) == 1;
  return environment;
}

Exit run_rank_main(const RankEnvironment& environment, const std::function<Exit()>& body) {
  if (!environment.ranked) {
    // The second signal has its usual effect: a user who insists is obeyed.
    install_stop_signals({SIGINT, SIGTERM}, SA_RESTART | static_cast<int>(SA_RESETHAND));
    return body();
  }
  die_with_launcher();
  connect_streams(environment);
  install_stop_signals({SIGUSR1},
                       SA_RESTART);  // SIGTERM keeps its effect: mpirun ends the ranks of a broken run with it
  report_ready(environment.channel, environment.rank);
  RankError error{environment.rank, Exit::environment_failed, "rank " + std::to_string(environment.rank), "", ""};
  try {
    const Exit exit = body();
    std::cout.flush();
    if (environment.rank == 0) report_outcome(environment.channel, exit);
    return Exit::done;
  } catch (const Error& thrown) {
    error = {environment.rank, thrown.exit(), thrown.thing(), thrown.cause(), thrown.mend()};
  } catch (const std::bad_alloc&) {
    error.cause = "the machine has no memory left for it";
    error.mend = "use fewer ranks on this machine, or a plan that needs less memory";
  } catch (const std::filesystem::filesystem_error& thrown) {  // a path that cannot even be looked at
    error.exit = Exit::bad_input;
    error.what += ": " + thrown.path1().string();
    error.cause = thrown.code().message();
    error.mend = "check the path and its permissions";
  } catch (const std::exception& thrown) {
    error.cause = thrown.what();
    error.mend = "this is a defect of foresail: please report it with the command line";
  }
  end_the_run(environment, error);
}

bool stop_requested() { return stop_flag != 0; }

}  // namespace foresail
