// Runs the built binary as a user would, and keeps what it said.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "core/json.h"

namespace foresail {

struct Said {
  int exit_code = -1;
  std::string output, log;
};

inline std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline int lines_of(const std::string& text) { return static_cast<int>(std::count(text.begin(), text.end(), '\n')); }

/// Every test has a folder of its own, in which the binary runs.
class System : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("foresail-system-" + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ / "tmp");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// Starts the binary in this test's folder, in a process group of its own as a shell does.
  pid_t start(std::vector<std::string> words) {
    words.insert(words.begin(), FORESAIL_BINARY);
    const pid_t child = fork();
    if (child == 0) {
      setpgid(0, 0);
      setenv("TMPDIR", (folder_ / "tmp").c_str(), 1);  // what a killed run leaves goes with the test's folder
      if (chdir(folder_.c_str()) != 0) _exit(126);
      dup2(open("stdout.txt", O_WRONLY | O_CREAT | O_TRUNC, 0600), STDOUT_FILENO);
      dup2(open("stderr.txt", O_WRONLY | O_CREAT | O_TRUNC, 0600), STDERR_FILENO);
      std::vector<char*> arguments;
      for (std::string& word : words) arguments.push_back(word.data());
      arguments.push_back(nullptr);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    return child;
  }

  Said finish(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), content_of(folder_ / "stdout.txt"),
            content_of(folder_ / "stderr.txt")};
  }

  Said run(std::vector<std::string> words) { return finish(start(std::move(words))); }

  /// The house form of a refusal: the exit code, nothing on standard output, one line that names all of `parts`.
  void expect_refused(const std::vector<std::string>& words, int exit_code, const std::vector<std::string>& parts) {
    const Said said = run(words);
    const std::string command = testing::PrintToString(words);
    EXPECT_EQ(said.exit_code, exit_code) << command << said.log;
    EXPECT_EQ(said.output, "") << command;
    EXPECT_EQ(lines_of(said.log), 1) << command << said.log;
    EXPECT_EQ(said.log.rfind("error: ", 0), 0u) << command << said.log;
    for (const std::string& part : parts) EXPECT_NE(said.log.find(part), std::string::npos) << command << said.log;
  }

  /// --json: exactly one document on standard output. `exit_code` -1: any.
  Json document_of(std::vector<std::string> words, int exit_code = 0) {
    words.emplace_back("--json");
    const Said said = run(words);
    if (exit_code >= 0) {
      EXPECT_EQ(said.exit_code, exit_code) << testing::PrintToString(words) << said.log;
    }
    const auto document = Json::parse(said.output, nullptr, false);
    EXPECT_FALSE(document.is_discarded()) << testing::PrintToString(words) << said.output;
    return document;
  }

  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }

  std::filesystem::path folder_;
};

}  // namespace foresail
