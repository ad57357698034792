// kill -9 of a rank at any moment, then --resume: the same weights, bit by bit, as the run that nobody disturbed.
#include <fmt/format.h>

#include <random>

#include "tests/system/small_training.h"

namespace foresail {
namespace {

constexpr int kMoments = 20;

class Faults : public SmallTraining {
 protected:
  /// The ranks of a run, ascending by start: the processes of this folder that are neither the launcher nor mpirun.
  std::vector<pid_t> ranks_of(pid_t launcher) const {
    std::vector<pid_t> ranks;
    for (const auto& [id, command] : processes()) {
      if (id != launcher && command.find("mpirun") == std::string::npos) ranks.push_back(id);
    }
    return ranks;
  }

  bool runs(pid_t child) const {
    siginfo_t info = {};
    return waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
  }

  /// Starts a run and kills rank `victim` after `delay_ms`, counted from when both ranks exist. Whether it was killed.
  bool killed_run(const std::vector<std::string>& words, int victim, int delay_ms) {
    const pid_t launcher = start(words);
    for (int wait = 0; wait < 2000 && runs(launcher) && ranks_of(launcher).size() < 2; ++wait) pause(2);
    pause(delay_ms);
    const std::vector<pid_t> ranks = ranks_of(launcher);
    if (ranks.size() == 2) kill(ranks[static_cast<size_t>(victim)], SIGKILL);
    const Said said = finish(launcher);
    if (said.exit_code == 3) {
      EXPECT_NE(said.log.find("SIGKILL"), std::string::npos) << said.log;
      EXPECT_NE(said.log.find("--resume"), std::string::npos) << said.log;
    } else {
      EXPECT_EQ(said.exit_code, 0) << said.log;  // it was through already
    }
    expect_no_process_left();
    return said.exit_code == 3;
  }
};

TEST_F(Faults, AnyRankKilledAtAnyMomentLeavesARunThatResumesToTheSameBits) {
  const auto begin = std::chrono::steady_clock::now();
  expect_done(train("dp2.json", "undisturbed"));
  const auto whole = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
  std::mt19937 random(20);
  int killed = 0;
  for (int moment = 0; moment < kMoments; ++moment) {
    std::filesystem::remove_all(folder_ / "run");
    const char* plan = moment % 2 == 0 ? "dp2.json" : "pp2.json";
    const std::string reference = moment % 2 == 0 ? "undisturbed" : "undisturbed-pp2";
    if (moment == 1) expect_done(train(plan, reference));
    const int delay = std::uniform_int_distribution<int>(0, static_cast<int>(whole.count()))(random);
    SCOPED_TRACE(fmt::format("moment {}: {} killed after {} ms", moment, plan, delay));
    killed += killed_run(train(plan, "run", {"--resume"}), moment / 2 % 2, delay) ? 1 : 0;
    expect_done(train(plan, "run", {"--resume"}));
    const std::string last = "/checkpoints/step-" + std::to_string(kSteps);
    expect_done({"checkpoint", "diff", "run" + last, reference + last});
    for (const auto& [name, content] : tree("run")) EXPECT_EQ(name.find(".tmp"), std::string::npos) << name;
  }
  EXPECT_GE(killed, kMoments / 4) << "the moments must meet the run while it runs";
}

TEST_F(Faults, ARunThatIsKilledAgainAndAgainStillEndsWithTheSameBits) {
  expect_done(train("dp2.json", "undisturbed"));
  std::mt19937 random(7);
  for (int life = 0; life < 6; ++life) {
    killed_run(train("dp2.json", "run", {"--resume"}), life % 2, std::uniform_int_distribution<int>(100, 600)(random));
  }
  expect_done(train("dp2.json", "run", {"--resume"}));
  const std::string last = "/checkpoints/step-" + std::to_string(kSteps);
  expect_done({"checkpoint", "diff", "run" + last, "undisturbed" + last});
}

TEST_F(Faults, MpirunOrTheLauncherKilledLeavesNoOrphan) {
  for (const bool mpirun_dies : {true, false}) {
    std::filesystem::remove_all(folder_ / "run");
    const pid_t launcher = start(train("dp2.json", "run"));
    for (int wait = 0; wait < 2000 && runs(launcher) && ranks_of(launcher).size() < 2; ++wait) pause(2);
    for (const auto& [id, command] : processes()) {
      const bool is_mpirun = id != launcher && command.find("mpirun") != std::string::npos;
      if (mpirun_dies ? is_mpirun : id == launcher) kill(id, SIGKILL);
    }
    const Said said = finish(launcher);
    EXPECT_EQ(said.exit_code, mpirun_dies ? 3 : 128 + SIGKILL) << said.log;
    expect_no_process_left();
    expect_done(train("dp2.json", "run", {"--resume"}));
  }
}

}  // namespace
}  // namespace foresail
