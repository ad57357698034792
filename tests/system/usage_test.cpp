// The command line as a contract: versions, help, and how wrong use is refused.
#include "tests/system/command.h"

namespace foresail {
namespace {

const std::vector<std::vector<std::string>> kCommands = {
    {"model"},
    {"profile"},
    {"plan"},
    {"simulate"},
    {"validate"},
    {"calibrate"},
    {"stress"},
    {"train"},
    {"sample"},
    {"data"},
    {"data", "prepare"},
    {"data", "inspect"},
    {"data", "verify"},
    {"checkpoint"},
    {"checkpoint", "list"},
    {"checkpoint", "verify"},
    {"checkpoint", "scrub"},
    {"checkpoint", "diff"},
    {"checkpoint", "export"},
    {"checkpoint", "import"},
    {"doctor"},
    {"launch"},
    {"report"},
};

TEST_F(System, VersionNamesVersionGitAndCompiler) {
  const Said said = run({"--version"});
  EXPECT_EQ(said.exit_code, 0);
  EXPECT_EQ(said.output.rfind("foresail ", 0), 0u) << said.output;
  EXPECT_NE(said.output.find("git "), std::string::npos) << said.output;
  EXPECT_EQ(lines_of(said.output), 1);
  EXPECT_EQ(said.log, "");
}

TEST_F(System, HelpListsEveryVerb) {
  const Said said = run({"--help"});
  EXPECT_EQ(said.exit_code, 0);
  for (const auto& command : kCommands)
    EXPECT_NE(said.output.find("  " + command[0] + " "), std::string::npos) << command[0];
}

TEST_F(System, EveryVerbHasHelpWithAnExample) {
  for (std::vector<std::string> command : kCommands) {
    const std::string name = "foresail " + command.front();
    command.emplace_back("--help");
    const Said said = run(command);
    EXPECT_EQ(said.exit_code, 0);
    const size_t example = said.output.find("Example:\n  ");
    ASSERT_NE(example, std::string::npos) << said.output;
    EXPECT_NE(said.output.find(name, example), std::string::npos) << said.output;
    EXPECT_EQ(said.log, "");
  }
}

TEST_F(System, WrongUseIsOneLineThatNamesTheMend) {
  expect_refused({}, 2, {"foresail: a verb is required", "--help"});
  expect_refused({"fly"}, 2, {"fly", "foresail --help"});
  expect_refused({"model"}, 2, {"foresail model", "MODEL is required", "foresail model --help"});
  expect_refused({"model", "gpt2", "--colour"}, 2, {"--colour"});
  expect_refused({"model", "gpt2", "llama-3-8b"}, 2, {"llama-3-8b"});
  expect_refused({"--log-level", "loud", "model", "gpt2"}, 2, {"loud", "debug"});
  expect_refused({"data"}, 2, {"prepare, inspect or verify"});
  expect_refused({"data", "polish"}, 2, {"polish"});
  expect_refused({"checkpoint"}, 2, {"list, verify, scrub"});
  expect_refused({"checkpoint", "diff", "a"}, 2, {"PATH2"});
  expect_refused({"plan", "--machine", "dgx-a100-80gb", "--objective", "speed"}, 2, {"speed", "throughput"});
}

TEST_F(System, NumbersAreChecked) {
  for (const char* wrong : {"0", "-4", "1.5", "many", "", "1e99", "nan", "12x"}) {
    expect_refused({"model", "gpt2", "--seq-len", wrong}, 2, {"--seq-len", "such as 8"});
  }
  const std::vector<std::string> plan = {"plan", "--model", "gpt2", "--machine", "dgx-a100-80gb"};
  const auto with = [&](const char* flag, const char* value) {
    std::vector<std::string> words = plan;
    words.insert(words.end(), {flag, value});
    return words;
  };
  expect_refused(with("--memory", "16 parsecs"), 2, {"--memory", "GiB"});
  expect_refused(with("--deadline", "-1"), 2, {"--deadline", "above 0"});
  expect_refused(with("--budget", "inf"), 2, {"--budget"});
  expect_refused(with("--devices", "8..2"), 2, {"devices"});
}

TEST_F(System, PartsThatAreNotBuiltSaySo) {
  for (const char* verb : {"calibrate", "doctor", "launch"}) {
    expect_refused({verb}, 2, {std::string("foresail ") + verb, "not built yet"});
    expect_refused({verb, "plan.json", "--slurm"}, 2, {"not built yet"});
  }
  expect_refused({"plan", "--model", "gpt2", "--machine", "dgx-a100-80gb", "--export", "megatron"}, 2,
                 {"--export", "not built"});
  expect_refused({"plan", "--model", "gpt2", "--machine", "dgx-a100-80gb", "--report", "x.html"}, 2,
                 {"--report", "not built"});
  expect_refused({"report", "run", "--out", "report.html"}, 2, {"--out", "not built"});
}

TEST_F(System, MpirunIsNotTheUsersToType) {
  setenv("OMPI_COMM_WORLD_RANK", "0", 1);
  setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
  expect_refused({"model", "gpt2"}, 2, {"mpirun", "starts its own ranks"});
  unsetenv("OMPI_COMM_WORLD_RANK");
  unsetenv("OMPI_COMM_WORLD_SIZE");
}

}  // namespace
}  // namespace foresail
