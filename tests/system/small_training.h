// A folder in which a tiny model can be trained: text, dataset, a short profile of this machine, plans. Prepared once per
// test binary; every test gets a copy. And what tests of broken runs ask: who is alive, has anything changed.
#pragma once

#include <signal.h>

#include <chrono>
#include <map>
#include <thread>

#include "tests/system/command.h"

namespace foresail {

class SmallTraining : public System {
 protected:
  static constexpr int kSteps = 50;

  static std::filesystem::path& prepared() {
    static std::filesystem::path folder;
    return folder;
  }

  void SetUp() override {
    System::SetUp();
    if (prepared().empty()) prepare();
    ASSERT_FALSE(prepared().empty());
    copy_prepared();
  }

  void copy_prepared() {
    std::filesystem::copy(prepared(), folder_,
                          std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  }

  static void TearDownTestSuite() {
    std::filesystem::remove_all(prepared());
    prepared().clear();
  }

  static Json tiny_model() {
    return {{"model_type", "llama"},    {"hidden_size", 32},
            {"intermediate_size", 64},  {"num_hidden_layers", 2},
            {"num_attention_heads", 4}, {"num_key_value_heads", 2},
            {"vocab_size", 260},        {"max_position_embeddings", 64}};
  }

  void expect_done(const std::vector<std::string>& words) {
    const Said said = run(words);
    ASSERT_EQ(said.exit_code, 0) << testing::PrintToString(words) << said.output << said.log;
  }

  /// Writes NAME for `devices`; `fix` as of --fix.
  void plan(const std::string& name, int devices, const std::string& fix, const std::string& model = "tiny.json") {
    write("job.json", R"({"schema": "foresail.job/1", "evaluation_interval_steps": 0, "evaluation_batches": 2,
                          "checkpoint_interval_steps": 5})");
    expect_done({"plan", "--job", "job.json", "--model", model, "--machine", "machine.json", "--devices",
                 std::to_string(devices), "--seq-len", "32", "--global-batch", "8", "--tokens",
                 std::to_string(kSteps * 8 * 32), "--fix", fix, "--out", name});
  }

  void prepare() {
    std::string text;
    for (int verse = 0; verse < 400; ++verse) {
      text += "And it came to pass in verse " + std::to_string(verse * verse) + " of this text.\n\n";
    }
    write("text.txt", text);
    write("tiny.json", tiny_model().dump());
    expect_done({"data", "prepare", "text.txt", "--tokenizer", "bytes", "--split", "blank-lines", "--out", "text"});
    expect_done(
        {"profile", "--out", "machine.json", "--for", "tiny.json", "--seq-len", "32", "--ranks", "2", "--budget", "8"});
    plan("dp2.json", 2, "dp=2");
    plan("tp2.json", 2, "tp=2");
    plan("pp2.json", 2, "pp=2");
    plan("one.json", 1, "dp=1");
    if (HasFailure()) return;
    prepared() = folder_.string() + "-prepared";
    std::filesystem::copy(folder_, prepared(), std::filesystem::copy_options::recursive);
  }

  std::vector<std::string> train(const std::string& plan, const std::string& out,
                                 std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"train", plan, "--data", "text", "--out", out});
    return more;
  }

  /// A refusal after start-up may follow lines of the log; the error is the last line and the only one of its kind.
  void expect_refused_while_running(const std::vector<std::string>& words, int exit_code,
                                    const std::vector<std::string>& parts) {
    const Said said = run(words);
    const std::string command = testing::PrintToString(words) + "\n" + said.log;
    EXPECT_EQ(said.exit_code, exit_code) << command;
    EXPECT_EQ(said.output, "") << command;
    const size_t error = said.log.rfind("error: ");
    ASSERT_NE(error, std::string::npos) << command;
    EXPECT_EQ(said.log.find("error: "), error) << command;
    EXPECT_EQ(lines_of(said.log.substr(error)), 1) << command;
    for (const std::string& part : parts) EXPECT_NE(said.log.find(part, error), std::string::npos) << part << command;
    expect_no_process_left();
  }

  /// Every file below `name` with its bytes.
  std::map<std::string, std::string> tree(const std::string& name) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ / name)) {
      const bool regular = entry.is_regular_file();
      files[entry.path().lexically_relative(folder_).string()] = regular ? content_of(entry.path()) : "";
    }
    return files;
  }

  /// Processes that work in this test's folder: id and command line.
  std::map<pid_t, std::string> processes() const {
    std::map<pid_t, std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename().string();
      if (name.find_first_not_of("0123456789") != std::string::npos || std::stoi(name) == getpid()) continue;
      std::error_code gone;
      if (std::filesystem::read_symlink(entry.path() / "cwd", gone) != folder_ || gone) continue;
      found[std::stoi(name)] = content_of(entry.path() / "cmdline");
    }
    return found;
  }

  static void pause(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

  void expect_no_process_left() const {
    for (int wait = 0; wait < 400 && !processes().empty(); ++wait) pause(50);
    EXPECT_TRUE(processes().empty());
  }
};

}  // namespace foresail
