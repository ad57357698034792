// Starting ranks: what the user sees of every way in which a run can end, and that nothing is left behind.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace foresail {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

struct Result {
  int exit_code = -1;
  std::string output, log;
};

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

int lines_of(const std::string& text) { return static_cast<int>(std::count(text.begin(), text.end(), '\n')); }

class Launch : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("foresail-launch-test-" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "tmp");
  }
  void TearDown() override { fs::remove_all(folder_); }

  void start(const std::string& fate, int ranks, std::vector<std::string> more = {}, const char* path = nullptr) {
    std::vector<std::string> words = {LAUNCH_PROBE, fate, std::to_string(ranks), folder_.string()};
    words.insert(words.end(), more.begin(), more.end());
    probe_ = fork();
    if (probe_ == 0) {
      setenv("TMPDIR", (folder_ / "tmp").c_str(), 1);
      if (path) setenv("PATH", path, 1);
      const int output = open((folder_ / "output").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      const int log = open((folder_ / "log").c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(output, STDOUT_FILENO);
      dup2(log, STDERR_FILENO);
      std::vector<char*> arguments;
      for (std::string& word : words) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
  }

  Result finish() {
    int status = 0;
    waitpid(probe_, &status, 0);
    Result result{WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), content_of(folder_ / "output"),
                  content_of(folder_ / "log")};
    return result;
  }

  Result run(const std::string& fate, int ranks, std::vector<std::string> more = {}) {
    start(fate, ranks, std::move(more));
    return finish();
  }

  /// Waits until all ranks have met, and returns their process ids.
  std::vector<pid_t> wait_for_ranks(int ranks) {
    const auto deadline = std::chrono::steady_clock::now() + seconds(60);
    std::vector<pid_t> found;
    const auto probe_runs = [&] {
      siginfo_t info = {};
      return waitid(P_PID, static_cast<id_t>(probe_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
    };
    while (found.size() < static_cast<size_t>(ranks) && probe_runs() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      found.clear();
      for (int rank = 0; rank < ranks; ++rank) {
        const std::string text = content_of(folder_ / ("pid-" + std::to_string(rank)));
        if (!text.empty() && text.back() == '\n') found.push_back(std::stoi(text));
      }
    }
    EXPECT_EQ(found.size(), static_cast<size_t>(ranks));
    return found;
  }

  /// Every process that carries this test's folder in its environment or arguments, other than zombies.
  std::vector<std::string> processes_left() {
    std::vector<std::string> left;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string name = entry.path().filename().string();
      if (name.find_first_not_of("0123456789") != std::string::npos || std::stoi(name) == getpid()) continue;
      const std::string words = content_of(entry.path() / "cmdline") + content_of(entry.path() / "environ");
      if (words.find(folder_.string()) != std::string::npos) left.push_back(name);
    }
    return left;
  }

  void expect_nothing_left() {
    const auto deadline = std::chrono::steady_clock::now() + seconds(20);
    while (!processes_left().empty() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT_EQ(processes_left(), std::vector<std::string>{});
    EXPECT_TRUE(fs::is_empty(folder_ / "tmp")) << "the private folder of the run is still there";
  }

  fs::path folder_;
  pid_t probe_ = 0;
};

TEST_F(Launch, TheOutcomeOfRankZeroIsTheExitCode) {
  EXPECT_EQ(run("done", 2).exit_code, 0);
  expect_nothing_left();
  EXPECT_EQ(run("no", 2).exit_code, 1);
  expect_nothing_left();
}

TEST_F(Launch, RanksReachEachOther) {
  const Result result = run("sum", 3);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.output, "sum 6\n");
  EXPECT_EQ(result.log, "");
}

TEST_F(Launch, OnlyRankZeroSpeaksToTheUser) {
  const Result result = run("speak", 3);
  EXPECT_EQ(result.output, "output of 0\n");
  EXPECT_EQ(result.log, "log of 0\n");
}

TEST_F(Launch, LongOutputArrivesWhole) {
  std::string expected;
  for (int line = 0; line < 20000; ++line) expected += std::to_string(line) + " is a line of a long document\n";
  EXPECT_EQ(run("big", 2).output, expected);
}

TEST_F(Launch, AnErrorOfOneRankEndsTheRunAsThatError) {
  const Result result = run("error", 3);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.log, "error: data.bin: token 70000 is beyond the vocabulary; prepare it again\n");
  EXPECT_EQ(result.output, "");
  expect_nothing_left();
}

TEST_F(Launch, TheSameErrorOfAllRanksIsSaidOnce) {
  const Result result = run("every-error", 3);
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.log, "error: plan.json: field 'seed': -1; use 0 or more\n");
}

TEST_F(Launch, AnExceptionThatNobodyForesawIsOneLineToo) {
  const Result result = run("exception", 2);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(lines_of(result.log), 1);
  EXPECT_NE(result.log.find("rank 1: a surprise"), std::string::npos) << result.log;
}

TEST_F(Launch, ARankThatIsKilledIsNamedWithItsSignal) {
  const Result result = run("kill", 3);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(lines_of(result.log), 1) << result.log;
  EXPECT_NE(result.log.find("rank 2 was killed by signal 9 (SIGKILL)"), std::string::npos) << result.log;
  expect_nothing_left();
}

TEST_F(Launch, ARankThatCrashesIsNamedWithItsLastWords) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer reports a crash in its own words";
#endif
  const Result result = run("crash", 2);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(lines_of(result.log), 1) << result.log;
  EXPECT_NE(result.log.find("rank 1 was killed by signal 11 (SIGSEGV)"), std::string::npos) << result.log;
  EXPECT_NE(result.log.find("the reason of the crash"), std::string::npos) << result.log;
  expect_nothing_left();
}

TEST_F(Launch, ARankThatLeavesEarlyIsNamed) {
  const Result result = run("leave", 2);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(lines_of(result.log), 1) << result.log;
  EXPECT_NE(result.log.find("rank 1 ended early with exit code 9"), std::string::npos) << result.log;
  expect_nothing_left();
}

TEST_F(Launch, AbortCarriesItsMessage) {
  const Result result = run("abort", 2);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(lines_of(result.log), 1) << result.log;
  EXPECT_NE(result.log.find("rank 1 "), std::string::npos) << result.log;
  EXPECT_NE(result.log.find("peers cannot see this"), std::string::npos) << result.log;
  expect_nothing_left();
}

TEST_F(Launch, ARequestToStopReachesTheRanksWhichEndInOrder) {
  for (int signal : {SIGTERM, SIGINT}) {
    start("work", 2);
    wait_for_ranks(2);
    kill(probe_, signal);
    const Result result = finish();
    EXPECT_EQ(result.exit_code, 75);
    EXPECT_EQ(result.output, "stopped in order\n");
    EXPECT_EQ(result.log, "");
    expect_nothing_left();
    for (int rank : {0, 1}) fs::remove(folder_ / ("pid-" + std::to_string(rank)));
  }
}

TEST_F(Launch, ARequestToStopBeforeTheRanksExistIsNotLost) {
  start("work", 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  kill(probe_, SIGTERM);
  const Result result = finish();
  // Before foresail's own handler stands, the signal has its usual effect: 128 + 15.
  EXPECT_TRUE(result.exit_code == 75 || result.exit_code == 128 + SIGTERM) << result.exit_code << result.log;
  expect_nothing_left();
}

TEST_F(Launch, RanksThatDoNotStopInTimeAreKilled) {
  start("deaf", 2, {"0.5"});
  wait_for_ranks(2);
  kill(probe_, SIGTERM);
  const Result result = finish();
  EXPECT_EQ(result.exit_code, 75);
  EXPECT_EQ(result.log,
            "error: run: its ranks were killed: they did not stop within 0.5 s of being asked; "
            "resume from the last checkpoint\n");
  expect_nothing_left();
}

TEST_F(Launch, AUserWhoInsistsIsObeyed) {
  start("deaf", 2);
  wait_for_ranks(2);
  kill(probe_, SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  kill(probe_, SIGINT);
  EXPECT_EQ(finish().exit_code, 75);
  expect_nothing_left();
}

TEST_F(Launch, NoRankOutlivesALauncherThatIsKilled) {
  start("deaf", 2);
  wait_for_ranks(2);
  kill(probe_, SIGKILL);
  finish();
  const auto deadline = std::chrono::steady_clock::now() + seconds(20);
  while (!processes_left().empty() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  EXPECT_EQ(processes_left(), std::vector<std::string>{});
}

TEST_F(Launch, AKilledRankOutsideAnyCollectiveEndsTheRun) {
  start("deaf", 3);
  const std::vector<pid_t> ranks = wait_for_ranks(3);
  kill(ranks.at(1), SIGKILL);
  const Result result = finish();
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_NE(result.log.find("rank 1 was killed by signal 9"), std::string::npos) << result.log;
  expect_nothing_left();
}

TEST_F(Launch, AMissingHostfileIsBadInput) {
  const Result result = run("done", 2, {"10", "/no/such/hosts"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(lines_of(result.log), 1);
  EXPECT_NE(result.log.find("/no/such/hosts"), std::string::npos) << result.log;
}

TEST_F(Launch, AHostfileIsUsedAndItsSlotsAreABound) {
  std::ofstream(folder_ / "hosts") << "# this machine\nlocalhost slots=2\n";
  EXPECT_EQ(run("sum", 2, {"10", (folder_ / "hosts").string()}).output, "sum 3\n");
  const Result result = run("sum", 3, {"10", (folder_ / "hosts").string()});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.log.find("2 slots cannot hold 3 ranks"), std::string::npos) << result.log;
  expect_nothing_left();
}

TEST_F(Launch, HostfilesWithoutHostsOrWithAbsurdSlotsAreBadInput) {
  for (const char* text :
       {"", "# nothing\n\n", "localhost slots=-1\n", "localhost slots=two\n", "localhost slots=99999999999\n"}) {
    std::ofstream(folder_ / "hosts") << text;
    EXPECT_EQ(run("done", 2, {"10", (folder_ / "hosts").string()}).exit_code, 2) << text;
  }
}

TEST_F(Launch, WithoutMpirunTheMendIsNamed) {
  start("done", 2, {}, "/nowhere");
  const Result result = finish();
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(lines_of(result.log), 1);
  EXPECT_NE(result.log.find("openmpi-bin"), std::string::npos) << result.log;
}

}  // namespace
}  // namespace foresail
