// kill -9 at any moment, then resume: bitwise the run that nobody disturbed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>

#include "tests/trainer/small_run.h"

namespace foresail {
namespace {

using testing::run_small;
using testing::small_options;
using testing::small_request;
using testing::TemporaryFolder;

constexpr int64_t kSteps = 50;

TrainerOptions resumable(const std::filesystem::path& run) {
  TrainerOptions options = small_options(run, kSteps);
  options.resume = true;
  return options;
}

/// Runs in a child process that is killed after `microseconds`; whether it was killed before its end.
bool killed_run(const SessionRequest& request, const std::filesystem::path& run, int microseconds) {
  const pid_t child = fork();
  if (child == 0) {
    int outcome = 0;
    try {
      run_small(request, resumable(run));
    } catch (...) {
      outcome = 1;
    }
    _exit(outcome);
  }
  usleep(static_cast<useconds_t>(microseconds));
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << "the resumed run failed";
  return WIFSIGNALED(status);
}

/// Kills that hit a running process.
int kill_and_compare(const SessionRequest& request, int trials, int kills) {
  const TemporaryFolder undisturbed;
  const auto begin = std::chrono::steady_clock::now();
  const auto expected = run_small(request, resumable(undisturbed.path()));
  const auto whole =
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin).count();
  std::mt19937 random(7);
  int killed = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const TemporaryFolder folder;
    for (int kill = 0; kill < kills; ++kill) {
      const auto moment = static_cast<int>(random() % static_cast<uint32_t>(whole / 2 + 1));
      killed += killed_run(request, folder.path(), moment) ? 1 : 0;
    }
    const auto finished = run_small(request, resumable(folder.path()));
    EXPECT_EQ(finished.report.last_step, kSteps);
    EXPECT_EQ(finished.report.tokens, expected.report.tokens);
    EXPECT_EQ(finished.state, expected.state) << "trial " << trial;
  }
  return killed;
}

TEST(Kill, AtTwentyRandomMomentsThenResumedIsBitwiseTheUndisturbedRun) {
  EXPECT_GE(kill_and_compare(small_request(), 5, 4), 10) << "most kills hit a running process";
}

TEST(Kill, InABatchRampThenResumedIsBitwiseTheUndisturbedRun) {
  SessionRequest request = small_request();  // 8 tokens per sequence, a checkpoint every 4 steps
  request.job.batch_ramp = {{2, 10 * 2 * 8}};
  for (const int64_t batch : {6, 8, 10}) {
    request.job.batch_ramp.push_back({request.job.global_batch, 9 * request.job.global_batch * 8});
    request.job.global_batch = batch;
  }
  ASSERT_EQ(batch_stages(request.job).back().first_sample, 10 * 2 + 9 * (4 + 6 + 8));
  EXPECT_GE(kill_and_compare(request, 3, 4), 6) << "most kills hit a running process";
}

}  // namespace
}  // namespace foresail
