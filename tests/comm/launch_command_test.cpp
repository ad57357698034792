// The mpirun command as a function of the request and the machine; errors and outcomes as they travel to the launcher.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "runtime/launch/channel.h"
#include "runtime/launch/command.h"
#include "runtime/launch/outcome.h"

namespace foresail {
namespace {

std::string command_for(const LaunchRequest& request, const HostFacts& facts, const Hosts& hosts = {}) {
  std::string text;
  for (const std::string& word : mpirun_command(request, facts, hosts, "mpirun", "/bin/program", "/tmp/channel")) {
    text += word + " ";
  }
  return text;
}

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(LaunchCommand, RanksOfOneThreadThatFitAreBoundToCores) {
  const std::string command = command_for({.ranks = 2, .threads_per_rank = 1}, {.cores = 2});
  EXPECT_TRUE(holds(command, "-np 2 "));
  EXPECT_TRUE(holds(command, "--bind-to core"));
  EXPECT_TRUE(holds(command, "mpi_yield_when_idle 0"));
  EXPECT_TRUE(holds(command, "OMP_NUM_THREADS=1"));
  EXPECT_FALSE(holds(command, "OMP_WAIT_POLICY"));
}

TEST(LaunchCommand, RanksWithThreadsAreNotBound) {
  const std::string command = command_for({.ranks = 2, .threads_per_rank = 4}, {.cores = 8});
  EXPECT_TRUE(holds(command, "--bind-to none"));
  EXPECT_TRUE(holds(command, "mpi_yield_when_idle 0"));
  EXPECT_TRUE(holds(command, "OMP_NUM_THREADS=4"));
}

TEST(LaunchCommand, MoreThanTheCoresYieldsAndWaitsPassively) {
  const std::string command = command_for({.ranks = 4, .threads_per_rank = 1}, {.cores = 2});
  EXPECT_TRUE(holds(command, "--oversubscribe"));
  EXPECT_TRUE(holds(command, "--bind-to none"));
  EXPECT_TRUE(holds(command, "mpi_yield_when_idle 1"));
  EXPECT_TRUE(holds(command, "OMP_WAIT_POLICY=passive"));
}

TEST(LaunchCommand, CoresCountPerHost) {
  const LaunchRequest request{.ranks = 4, .threads_per_rank = 1, .hostfile = "hosts"};
  EXPECT_TRUE(holds(command_for(request, {.cores = 2}, {.count = 2, .slots = 4}), "mpi_yield_when_idle 0"));
  EXPECT_TRUE(holds(command_for(request, {.cores = 2}, {.count = 1, .slots = 4}), "mpi_yield_when_idle 1"));
  EXPECT_TRUE(holds(command_for(request, {.cores = 2}, {.count = 2, .slots = 4}), "--hostfile hosts"));
}

TEST(LaunchCommand, RootAndRefusedSingleCopyHaveTheirFlags) {
  const LaunchRequest request;
  EXPECT_TRUE(holds(command_for(request, {.cores = 2, .root = true}), "--allow-run-as-root"));
  EXPECT_FALSE(holds(command_for(request, {.cores = 2, .root = false}), "--allow-run-as-root"));
  EXPECT_TRUE(holds(command_for(request, {.cores = 2, .single_copy = false}), "btl_vader_single_copy_mechanism none"));
  EXPECT_FALSE(holds(command_for(request, {.cores = 2, .single_copy = true}), "btl_vader"));
}

TEST(LaunchCommand, ArgumentsFollowTheProgramUnchanged) {
  const LaunchRequest request{.ranks = 2, .arguments = {"train", "a plan.json", "--data", "", "x"}};
  const auto command = mpirun_command(request, {.cores = 2}, {}, "mpirun", "/bin/program", "/tmp/channel");
  const auto program = std::find(command.begin(), command.end(), "/bin/program");
  ASSERT_NE(program, command.end());
  EXPECT_EQ(std::vector<std::string>(program + 1, command.end()), request.arguments);
}

TEST(LaunchCommand, TheOwnExecutableIsAnAbsolutePathThatRuns) {
  EXPECT_EQ(own_executable().find('/'), 0u);
  EXPECT_NE(own_executable().find("test_comm"), std::string::npos);
}

TEST(LaunchChannel, AnErrorTravelsWhole) {
  const RankError error{3, Exit::bad_input, "plan.json", "two\nlines", ""};
  const auto back = parse_error_line(error_line(error));
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->rank, 3);
  EXPECT_EQ(back->exit, Exit::bad_input);
  EXPECT_EQ(back->what, "plan.json");
  EXPECT_EQ(back->cause, "two lines");
  EXPECT_EQ(back->mend, "");
}

TEST(LaunchChannel, OtherLinesAreNoErrors) {
  EXPECT_FALSE(parse_error_line("").has_value());
  EXPECT_FALSE(parse_error_line("error: something").has_value());
  EXPECT_FALSE(parse_error_line(error_line({0, Exit::done, "a", "b", "c"}).substr(0, 18)).has_value());
}

TEST(LaunchChannel, TheFirstErrorWins) {
  const ChannelFolder folder;
  EXPECT_FALSE(reported_error(folder.path()).has_value());
  EXPECT_TRUE(report_error(folder.path(), {2, Exit::bad_input, "first", "", ""}));
  EXPECT_TRUE(report_error(folder.path(), {0, Exit::environment_failed, "second", "", ""}));
  EXPECT_EQ(reported_error(folder.path())->what, "first");
  EXPECT_FALSE(report_error("/no/such/folder", {0, Exit::bad_input, "x", "", ""}));
}

TEST(LaunchChannel, ReadinessNeedsEveryRank) {
  const ChannelFolder folder;
  report_ready(folder.path(), 1);
  EXPECT_FALSE(all_ready(folder.path(), 2));
  report_ready(folder.path(), 0);
  EXPECT_TRUE(all_ready(folder.path(), 2));
}

TEST(LaunchOutcome, AnErrorOnAnotherHostArrivesAsALine) {
  const ChannelFolder folder;
  const RunRemains remains{.channel = folder.path(),
                           .wait_status = 2 << 8,
                           .mpirun_lines = {"noise", error_line({1, Exit::bad_input, "shard", "missing", "copy it"})}};
  try {
    outcome_of(remains);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    EXPECT_STREQ(error.what(), "shard: missing; copy it");
  }
}

TEST(LaunchOutcome, SuccessWithoutAnOutcomeIsNotBelieved) {
  const ChannelFolder folder;
  EXPECT_THROW(outcome_of({.channel = folder.path(), .wait_status = 0}), Error);
  report_outcome(folder.path(), Exit::stopped);
  EXPECT_EQ(outcome_of({.channel = folder.path(), .wait_status = 0}), Exit::stopped);
}

TEST(LaunchOutcome, MpirunThatCannotStartSaysWhy) {
  const ChannelFolder folder;
  const RunRemains remains{.channel = folder.path(),
                           .wait_status = 1 << 8,
                           .mpirun_lines = {"------------", "There are not enough slots available", "more"}};
  try {
    outcome_of(remains);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::environment_failed);
    EXPECT_TRUE(holds(error.what(), "There are not enough slots available")) << error.what();
  }
}

}  // namespace
}  // namespace foresail
