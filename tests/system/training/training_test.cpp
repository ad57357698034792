// From this machine to trained weights, as a user does it: profile, plan, stress, train, sample; and what happens to a run
// that is stopped, killed, or asked for what it cannot do.
#include <signal.h>

#include <chrono>
#include <thread>

#include "runtime/tokenizer/byte_alphabet.h"
#include "tests/system/command.h"

namespace foresail {
namespace {

constexpr const char* kTinyLlama = R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 260,
  "max_position_embeddings": 64, "tie_word_embeddings": false})";

std::string verses() {
  std::string text;
  for (int verse = 0; verse < 200; ++verse) {
    for (int line = 0; line < 4; ++line) text += "In the beginning was word " + std::to_string(verse * line) + ".\n";
    text += "\n";
  }
  return text;
}

/// One folder with data, a profile of this machine and a plan for two ranks, shared by the tests of this file.
class Training : public System {
 protected:
  static std::filesystem::path& prepared() {
    static std::filesystem::path folder;
    return folder;
  }

  void SetUp() override {
    System::SetUp();
    if (prepared().empty()) prepare();
    ASSERT_FALSE(prepared().empty());
    std::filesystem::copy(prepared(), folder_,
                          std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  }

  static void TearDownTestSuite() { std::filesystem::remove_all(prepared()); }

  void prepare() {
    write("tiny.json", kTinyLlama);
    write("verses.txt", verses());
    Said said =
        run({"data", "prepare", "verses.txt", "--tokenizer", "bytes", "--split", "blank-lines", "--out", "verses"});
    ASSERT_EQ(said.exit_code, 0) << said.log;
    said = run({"profile", "--out", "machine.json", "--for", "tiny.json", "--seq-len", "64", "--ranks", "2", "--budget",
                "16"});
    ASSERT_EQ(said.exit_code, 0) << said.log;
    // 40 steps, and as many as nobody waits for.
    for (const auto& [tokens, name] : {std::pair{"20480", "plan.json"}, std::pair{"1e9", "long.json"}}) {
      said = run({"plan", "--model", "tiny.json", "--machine", "machine.json", "--devices", "2", "--seq-len", "64",
                  "--global-batch", "8", "--tokens", tokens, "--out", name});
      ASSERT_EQ(said.exit_code, 0) << said.output << said.log;
    }
    prepared() = folder_.string() + "-prepared";
    std::filesystem::copy(folder_, prepared(), std::filesystem::copy_options::recursive);
  }

  /// Starts a training run of more steps than a test waits for, and returns when it has trained some.
  pid_t start_long_run() {
    const pid_t training = start({"train", "long.json", "--data", "verses", "--out", "run"});
    const auto runs = [&] {
      siginfo_t info = {};
      return waitid(P_PID, static_cast<id_t>(training), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == 0;
    };
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (lines_of(content_of(folder_ / "run/metrics.jsonl")) < 2 && runs() &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_TRUE(runs()) << content_of(folder_ / "stderr.txt");
    return training;
  }

  std::vector<std::string> processes_left() {
    std::vector<std::string> left;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename().string();
      if (name.find_first_not_of("0123456789") != std::string::npos || std::stoi(name) == getpid()) continue;
      std::error_code gone;
      const auto where = std::filesystem::read_symlink(entry.path() / "cwd", gone);
      if (!gone && where == folder_) left.push_back(name + " " + content_of(entry.path() / "comm"));
    }
    return left;
  }

  void expect_no_process_left() {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!processes_left().empty() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT_EQ(processes_left(), std::vector<std::string>{});
  }
};

TEST_F(Training, APlanIsStressedTrainedAndSampled) {
  const Json stressed =
      document_of({"stress", "plan.json", "--data", "verses", "--minutes", "0.05", "--out", "drill"}, -1);
  for (const char* key : {"verdict", "checks", "plan", "seconds"}) EXPECT_TRUE(stressed.contains(key)) << key;
  for (const Json& check : stressed["checks"]) {
    // Timing depends on who else uses the machine; everything else must hold.
    if (check["unit"] == "s" || check["unit"] == "tokens/s") continue;
    EXPECT_TRUE(check["passed"].get<bool>()) << check.dump();
  }

  const Json trained = document_of({"train", "plan.json", "--data", "verses", "--out", "run"});
  EXPECT_EQ(trained["steps"], 40);
  EXPECT_EQ(trained["tokens"], 20480);
  EXPECT_LT(trained["loss"].get<double>(), 5.5);
  const std::string checkpoint = trained["checkpoint"];
  EXPECT_EQ(run({"checkpoint", "verify", checkpoint}).exit_code, 0);

  // The answer may be no on a busy machine; the document is there all the same.
  EXPECT_TRUE(document_of({"report", "run"}, -1).is_object());

  const Json sampled = document_of({"sample", checkpoint, "--prompt", "In the", "--tokens", "8"});
  EXPECT_EQ(sampled["text"].get<std::string>().rfind("In the", 0), 0u);
  expect_no_process_left();
}

TEST_F(Training, WeightsGoOutAsHuggingFaceHasThemAndAreTrainedOn) {
  const std::vector<std::string> shape = {"--machine", "machine.json", "--seq-len", "64", "--global-batch",
                                          "8",         "--tokens",     "20480"};
  const auto plan = [&](const std::string& model, const std::string& devices, const std::string& out) {
    std::vector<std::string> words = {"plan", "--model", model, "--devices", devices, "--out", out};
    words.insert(words.end(), shape.begin(), shape.end());
    const Said said = run(words);
    ASSERT_EQ(said.exit_code, 0) << said.log;
  };
  const Json trained = document_of({"train", "plan.json", "--data", "verses", "--out", "run"});
  const std::string checkpoint = trained["checkpoint"];
  const Json exported = document_of({"checkpoint", "export", checkpoint, "weights", "--max-shard-bytes", "100kB"});
  EXPECT_GT(exported["files"].size(), 1u);
  EXPECT_EQ(exported["rounded"], 0);
  // The folder is a MODEL and its weights; two devices and one, from the files and from the checkpoint.
  for (const char* devices : {"2", "1"}) {
    plan("weights", devices, "tuned.json");
    const auto tune = [&](const std::string& init, const std::string& out) {
      return document_of({"train", "tuned.json", "--data", "verses", "--out", out, "--init", init, "--steps", "3"});
    };
    const Json from_files = tune("weights", std::string("files-") + devices);
    const Json from_checkpoint = tune(checkpoint, std::string("checkpoint-") + devices);
    EXPECT_EQ(from_files["steps"], 3);
    EXPECT_EQ(from_files["loss"], from_checkpoint["loss"]) << "to the last bit";
    EXPECT_EQ(from_files["validation_loss"], from_checkpoint["validation_loss"]);
    EXPECT_LT(from_files["loss"].get<double>(), trained["loss"].get<double>() + 0.2);
    const Said same = run({"checkpoint", "diff", from_files["checkpoint"], from_checkpoint["checkpoint"]});
    EXPECT_EQ(same.exit_code, 0) << same.output;
  }
  const Json imported = document_of({"checkpoint", "import", "weights", "imported/step-0"});
  EXPECT_EQ(imported["parameters"], exported["parameters"]);
  EXPECT_EQ(run({"checkpoint", "verify", "imported/step-0"}).exit_code, 0);
  document_of({"sample", "imported/step-0", "--prompt", "In the", "--tokens", "4"});

  // What does not fit is said before anything starts, and leaves nothing.
  expect_refused({"checkpoint", "export", checkpoint, "weights"}, 2, {"weights", "not empty"});
  expect_refused({"checkpoint", "export", checkpoint, "other", "--dtype", "f8"}, 2, {"--dtype"});
  expect_refused({"checkpoint", "export", "run", "other"}, 2, {"run", "not one checkpoint"});
  expect_refused({"train", "tuned.json", "--data", "verses", "--out", "new", "--init", "verses.bin"}, 2,
                 {"verses.bin"});
  std::filesystem::remove(folder_ / "weights" / exported["files"][0].get<std::string>());
  expect_refused({"train", "tuned.json", "--data", "verses", "--out", "new", "--init", "weights"}, 2,
                 {"index.json", exported["files"][0]});
  expect_refused({"checkpoint", "import", "weights", "new"}, 2, {"index.json", exported["files"][0]});
  EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "other"));
  expect_no_process_left();
}

TEST_F(Training, ARunThatIsAskedToStopWritesACheckpointAndGoesOnFromIt) {
  const pid_t training = start_long_run();
  kill(training, SIGTERM);
  const Said said = finish(training);
  EXPECT_EQ(said.exit_code, 75) << said.log;
  expect_no_process_left();
  const Json list = document_of({"checkpoint", "list", "run"});
  ASSERT_FALSE(list["checkpoints"].empty()) << list.dump();
  const int64_t step = list["checkpoints"].back()["step"];
  const Json resumed = document_of(
      {"train", "long.json", "--data", "verses", "--out", "run", "--resume", "--steps", std::to_string(step + 5)});
  EXPECT_EQ(resumed["steps"], step + 5);
}

TEST_F(Training, ALauncherThatIsKilledLeavesNoRankBehind) {
  const pid_t training = start_long_run();
  kill(training, SIGKILL);
  finish(training);
  expect_no_process_left();
}

TEST_F(Training, ARankThatIsKilledIsNamed) {
  const pid_t training = start_long_run();
  // The ranks are the processes of this folder that are neither foresail's own nor mpirun's; the last one started dies.
  pid_t victim = 0;
  for (const std::string& process : processes_left()) {
    const pid_t id = std::stoi(process);
    if (id != training && process.find("foresail") != std::string::npos) victim = std::max(victim, id);
  }
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  const Said said = finish(training);
  EXPECT_EQ(said.exit_code, 3);
  EXPECT_NE(said.log.find("was killed by signal 9 (SIGKILL)"), std::string::npos) << said.log;
  EXPECT_NE(said.log.find("--resume"), std::string::npos) << said.log;
  expect_no_process_left();
}

/// All bytes and three words, as a tokenizer.json.
Json small_tokenizer() {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[std::string(byte_character(static_cast<unsigned char>(byte)))] = byte;
  for (const char* word : {"In", "th", "the"}) vocabulary[word] = vocabulary.size();
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  return {{"added_tokens", {{{"id", 259}, {"content", "<end>"}, {"special", true}}}},
          {"pre_tokenizer", byte_level},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", {"I n", "t h", "th e"}}}}};
}

TEST_F(Training, ATokenizerGoesFromTheDatasetToSample) {
  write("tokenizer.json", small_tokenizer().dump());
  const Json prepared = document_of({"data", "prepare", "verses.txt", "--tokenizer", "tokenizer.json", "--split",
                                     "blank-lines", "--out", "set/verses"});
  EXPECT_EQ(prepared["tokenizer"], "byte-level-bpe");
  EXPECT_EQ(prepared["tokenizer_name"], "tokenizer.json");
  EXPECT_EQ(prepared["vocabulary"], 260);
  EXPECT_EQ(prepared["end_of_document"], 259);
  EXPECT_EQ(run({"data", "verify", "set/verses"}).exit_code, 0);

  // The model's folder has the same tokenizer: nothing to say. Another one: a warning, not a refusal.
  std::filesystem::create_directories(folder_ / "model");
  write("model/config.json", kTinyLlama);
  write("model/tokenizer.json", small_tokenizer().dump());
  Said said = run({"plan", "--model", "model", "--machine", "machine.json", "--devices", "1", "--seq-len", "64",
                   "--global-batch", "8", "--tokens", "5120", "--out", "own.json"});
  ASSERT_EQ(said.exit_code, 0) << said.output << said.log;
  said = run({"train", "own.json", "--data", "set/verses", "--out", "run"});
  ASSERT_EQ(said.exit_code, 0) << said.log;
  EXPECT_EQ(said.log.find("another tokenizer"), std::string::npos) << said.log;
  write("model/tokenizer.json", small_tokenizer().dump(1));
  said = run({"train", "own.json", "--data", "set/verses", "--out", "run2"});
  ASSERT_EQ(said.exit_code, 0) << said.log;
  EXPECT_NE(said.log.find("another tokenizer"), std::string::npos) << said.log;

  // The run keeps the tokenizer, so that sample needs no dataset.
  std::filesystem::remove_all(folder_ / "set");
  const std::vector<std::string> words = {"sample", "run", "--prompt", "In the", "--tokens", "12", "--seed", "3"};
  const std::string text = document_of(words)["text"];
  EXPECT_EQ(text.rfind("In the", 0), 0u);
  auto with = [&](const std::string& tokenizer) {
    auto more = words;
    more.insert(more.end(), {"--tokenizer", tokenizer});
    return more;
  };
  EXPECT_EQ(document_of(with("tokenizer.json"))["text"], text);
  expect_refused(with("model/tokenizer.json"), 2, {"model/tokenizer.json", "another tokenizer.json"});
  expect_refused(with("bytes"), 2, {"--tokenizer"});
  std::filesystem::remove(folder_ / "run/tokenizer.json");
  expect_refused(words, 2, {"add --tokenizer"});
  EXPECT_EQ(document_of(with("tokenizer.json"))["text"], text);
  expect_no_process_left();
}

TEST_F(Training, WhatCannotRunIsRefusedBeforeAnythingStarts) {
  expect_refused({"train", "missing.json", "--data", "verses", "--out", "run"}, 2, {"missing.json"});
  expect_refused({"train", "plan.json", "--data", "missing", "--out", "run"}, 2, {"missing"});
  expect_refused({"train", "plan.json", "--data", "verses", "--out", "run", "--hosts", "missing"}, 2, {"missing"});
  expect_refused({"train", "plan.json", "--data", "verses", "--out", "run", "--resume=step-x"}, 2, {"--resume"});
  expect_refused({"train", "plan.json", "--data", "verses", "--out", "run", "--resume=healthy"}, 2, {"not built yet"});
  expect_refused({"stress", "missing.json", "--data", "verses"}, 2, {"missing.json"});
  expect_refused({"sample", "run", "--prompt", "x"}, 2, {"run"});
  expect_refused({"report", "run"}, 2, {"run"});
  expect_refused({"checkpoint", "export", "missing", "weights"}, 2, {"missing", "no folder"});
  expect_refused({"checkpoint", "import", "missing", "step-0"}, 2, {"missing", "no such folder"});
  expect_refused({"profile", "--out", "no/such/folder/machine.json"}, 2, {"folder"});
  expect_refused({"profile", "--out", "m.json", "--for", "gpt9"}, 2, {"gpt9"});
  EXPECT_FALSE(std::filesystem::exists(folder_ / "run")) << "half-written";
  EXPECT_FALSE(std::filesystem::exists(folder_ / "m.json"));
}

}  // namespace
}  // namespace foresail
