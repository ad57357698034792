// Files and flags that are wrong: exit 2 or 3, one line that names file, field and mend, and nothing half-written.
#include <sys/stat.h>

#include <functional>

#include "tests/system/small_training.h"

namespace foresail {
namespace {

class BadInput : public SmallTraining {
 protected:
  struct Edit {
    std::function<void(Json&)> change;
    std::string named;  ///< in the message
  };

  /// `name`, changed, as edited.json.
  void edit(const std::string& name, const std::function<void(Json&)>& change) {
    Json value = Json::parse(content_of(folder_ / name));
    change(value);
    write("edited.json", value.dump());
  }

  void expect_all_refused(const std::string& name, const std::vector<std::string>& words,
                          const std::vector<Edit>& edits) {
    for (const Edit& change : edits) {
      edit(name, change.change);
      expect_refused(words, 2, {"edited.json", change.named, "; "});
    }
  }

  bool exists(const std::string& name) const { return std::filesystem::exists(folder_ / name); }

  /// A shell command in the test's folder; "$F" is the binary.
  Said shell(const std::string& command) {
    const int status = std::system(
        ("cd '" + folder_.string() + "' && export F='" FORESAIL_BINARY "' && (" + command + ") 2>stderr.txt").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), "", content_of(folder_ / "stderr.txt")};
  }
};

/// What is no JSON object at all, for everything that reads one.
TEST_F(BadInput, FilesThatAreNoSuchFileAreNamed) {
  write("empty.json", "");
  write("truncated.json", "{\"a\": ");
  write("binary.json", std::string("\x7f"
                                   "ELF\0\1\2",
                                   7));
  write("list.json", "[]");
  write("twice.json", R"({"model_type": "llama", "model_type": "llama"})");
  write("deep.json", std::string(100000, '['));
  std::filesystem::create_directory(folder_ / "folder.json");
  std::filesystem::create_symlink("loop.json", folder_ / "loop.json");
  ASSERT_EQ(mkfifo((folder_ / "pipe.json").c_str(), 0600), 0);
  for (const char* kind :
       {"missing", "empty", "truncated", "binary", "list", "twice", "deep", "folder", "loop", "pipe"}) {
    const std::string name = kind + std::string(".json");
    expect_refused({"model", name}, 2, {name});
    expect_refused({"plan", "--model", "gpt2", "--machine", name}, 2, {name});
    expect_refused({"plan", "--model", "gpt2", "--machine", "dgx-a100-80gb", "--job", name}, 2, {name});
    expect_refused({"plan", "--model", "gpt2", "--machine", "dgx-a100-80gb", "--stack", name}, 2, {name});
    expect_refused({"simulate", "--program", name, "--machine", "dgx-a100-80gb"}, 2, {name});
    expect_refused(train(name, "run"), 2, {name});
    expect_refused({"stress", name, "--data", "text"}, 2, {name});
    expect_refused({"validate", name}, 2, {name});
    expect_refused({"report", name}, 2, {name});
    expect_refused({"sample", name, "--prompt", "x"}, 2, {name});
    expect_refused({"checkpoint", "verify", name}, 2, {name});
  }
  EXPECT_FALSE(exists("run"));
}

TEST_F(BadInput, AFileOfAnotherKindIsNotTaken) {
  expect_refused({"plan", "--model", "gpt2", "--machine", "dp2.json"}, 2, {"dp2.json", "foresail.plan/1"});
  expect_refused(train("machine.json", "run"), 2, {"machine.json", "foresail.machine/1"});
  edit("machine.json", [](Json& m) { m["schema"] = "foresail.machine/9"; });
  expect_refused({"plan", "--model", "tiny.json", "--machine", "edited.json"}, 2, {"edited.json", "machine/9"});
}

TEST_F(BadInput, ModelFieldsAreChecked) {
  const auto set = [](const char* key, const Json& value) {
    return Edit{[key, value](Json& model) { model[key] = value; }, key};
  };
  expect_all_refused("tiny.json", {"model", "edited.json"},
                     {set("hidden_size", 0),
                      set("hidden_size", -32),
                      set("hidden_size", "32"),
                      set("hidden_size", 32.5),
                      set("hidden_size", 1e30),
                      set("hidden_size", 33),
                      set("num_hidden_layers", 1000000000),
                      {[](Json& model) { model["num_attention_heads"] = 3; }, "3 attention heads"},
                      set("num_key_value_heads", 3),
                      set("num_key_value_heads", 0),
                      set("head_dim", 7),
                      set("vocab_size", int64_t{1} << 40),
                      set("max_position_embeddings", 0),
                      set("rms_norm_eps", -1),
                      set("rope_theta", 0),
                      set("rope_scaling", Json{{"type", "longrope"}, {"factor", 2}}),
                      set("hidden_act", "gelu"),
                      set("tie_word_embeddings", "yes"),
                      set("model_type", "mamba"),
                      set("model_type", 5)});
}

TEST_F(BadInput, MachineFieldsAreChecked) {
  expect_all_refused("machine.json", {"plan", "--model", "tiny.json", "--machine", "edited.json"},
                     {{[](Json& m) { m["devices"] = -1; }, "devices"},
                      {[](Json& m) { m["devices"] = "two"; }, "devices"},
                      {[](Json& m) { m.erase("device"); }, "device"},
                      {[](Json& m) { m["colour"] = "red"; }, "colour"}});
}

TEST_F(BadInput, PlanFieldsAreCheckedBeforeAnyRankStarts) {
  expect_all_refused("dp2.json", train("edited.json", "run"),
                     {{[](Json& p) { p["strategy"]["dp"] = 0; }, "strategy.dp"},
                      {[](Json& p) { p["strategy"]["dp"] = 1; }, "strategy.devices"},
                      {[](Json& p) { p["strategy"]["micro_batch"] = 3; }, "global batch"},
                      {[](Json& p) { p["strategy"]["ep"] = 2; }, "the model has no experts"},
                      {[](Json& p) { p["strategy"]["colour"] = 1; }, "strategy.colour"},
                      {[](Json& p) { p.erase("job"); }, "job"},
                      {[](Json& p) { p["job"]["seed"] = -1; }, "job.seed"},
                      {[](Json& p) { p["job"]["optimizer"]["learning_rate"] = 1e9; }, "learning_rate"},
                      {[](Json& p) { p["target"]["threads"] = 0; }, "target.threads"},
                      {[](Json& p) { p["target"]["alignment"] = 3; }, "target.alignment"},
                      {[](Json& p) { p["program_digests"] = Json::array(); }, "program_digests"},
                      {[](Json& p) { p["model_config"] = "{}"; }, "model_config"},
                      {[](Json& p) { p["predicted"]["arena_bytes"] = -1; }, "arena_bytes"},
                      {[](Json& p) { p["steps"] = 0; }, "steps"}});
  EXPECT_FALSE(exists("run"));
}

TEST_F(BadInput, APlanThatWasEditedIsNotThePlanThatWasPriced) {
  const std::vector<Edit> edits = {{[](Json& p) {
                                      Json& size = p["strategy"]["micro_batch"];
                                      size = size == 2 ? 1 : 2;
                                    },
                                    "program_digests"},
                                   {[](Json& p) {
                                      Json& choice = p["strategy"]["recompute"];
                                      choice = choice == "full" ? "none" : "full";
                                    },
                                    "program_digests"},
                                   {[](Json& p) { p["job"]["global_batch"] = 16; }, "program_digests"},
                                   {[](Json& p) { p["predicted"]["arena_bytes"] = 4096; }, "arena"}};
  for (const Edit& change : edits) {
    edit("dp2.json", change.change);
    expect_refused_while_running(train("edited.json", "run"), 2, {"edited.json", change.named});
  }
  EXPECT_FALSE(exists("run"));
}

TEST_F(BadInput, APlanForMoreRanksThanCanStartIsRefused) {
  std::string digest;
  const auto enlarge = [&](Json& p) {
    p["strategy"]["dp"] = p["strategy"]["devices"] = 1000000;
    p["job"]["global_batch"] = 4000000;
    if (!digest.empty()) p["program_digests"] = Json::array({digest});
  };
  edit("dp2.json", enlarge);
  const std::string refusal = run(train("edited.json", "run")).log;  // another Program: the refusal tells its digest
  const std::string before = "compiles to ";
  ASSERT_NE(refusal.find(before), std::string::npos) << refusal;
  digest = refusal.substr(refusal.find(before) + before.size(), 32);
  edit("dp2.json", enlarge);
  expect_refused(train("edited.json", "run"), 3, {"1000000 ranks", "memory", "fewer devices"});
  write("hosts", "localhost slots=1\n");
  expect_refused(train("dp2.json", "run", {"--hosts", "hosts"}), 2, {"hosts", "1 slots", "2 ranks"});
  write("hosts", "localhost slots=many\n");
  expect_refused(train("dp2.json", "run", {"--hosts", "hosts"}), 2, {"hosts", "slots=many"});
  write("hosts", "# nobody\n");
  expect_refused(train("dp2.json", "run", {"--hosts", "hosts"}), 2, {"hosts", "names no host"});
  EXPECT_FALSE(exists("run"));
}

TEST_F(BadInput, TextThatIsNoneLeavesNoDataset) {
  write("empty.txt", "");
  write("blank.txt", "\n\n\n");
  write("broken.jsonl", "{\"text\": \"a\"}\n{broken\n");
  write("number.jsonl", "{\"text\": 5}\n");
  write("other.jsonl", "{\"words\": \"a\"}\n");
  write("broken.gz", "\x1f\x8bgarbage");
  write("broken.zst", "\x28\xb5\x2f\xfdxx");
  for (const char* name : {"missing.txt", "empty.txt", "blank.txt", "broken.jsonl", "number.jsonl", "other.jsonl",
                           "broken.gz", "broken.zst"}) {
    expect_refused({"data", "prepare", name, "--tokenizer", "bytes", "--split", "blank-lines", "--out", "new"}, 2,
                   {name});
  }
  for (const auto& [name, content] : tree(".")) EXPECT_EQ(name.find("new"), std::string::npos) << name;
}

TEST_F(BadInput, ADatasetNeverReplacesItsInputNorAFolder) {
  write("own.bin", "text");
  expect_refused({"data", "prepare", "own.bin", "--tokenizer", "bytes", "--out", "own"}, 2, {"own.bin", "--out"});
  EXPECT_EQ(content_of(folder_ / "own.bin"), "text");
  std::filesystem::create_directory(folder_ / "taken.bin");
  expect_refused({"data", "prepare", "text.txt", "--tokenizer", "bytes", "--out", "taken"}, 2, {"taken.bin", "folder"});
  EXPECT_TRUE(exists("taken.bin"));
}

TEST_F(BadInput, ADamagedDatasetIsNamed) {
  const std::vector<std::pair<const char*, const char*>> damages = {
      {": > text.bin", "text.bin"},
      {": > text.idx", "text.idx"},
      {"truncate -s -1 text.bin", "text.bin"},
      {"truncate -s -1 text.idx", "text.idx"},
      {"rm text.bin", "text.bin"},
      {"rm text.idx", "text.idx"},
      {"printf X | dd of=text.idx bs=1 conv=notrunc", "text.idx"},
      {"printf '\\377' | dd of=text.idx bs=1 seek=31 conv=notrunc", "text.idx"},
      {": > text.dataset.json", "text.dataset.json"}};
  for (const auto& [damage, named] : damages) {
    copy_prepared();
    ASSERT_EQ(shell(damage).exit_code, 0) << damage;
    expect_refused(train("dp2.json", "run"), 2, {named});
    expect_refused({"data", "inspect", "text"}, 2, {named});
  }
  EXPECT_FALSE(exists("run"));
}

TEST_F(BadInput, DataThatDoesNotSuitThePlanIsRefused) {
  write("short.txt", "a");
  expect_done({"data", "prepare", "short.txt", "--tokenizer", "bytes", "--out", "short"});
  expect_refused({"train", "dp2.json", "--data", "short", "--out", "run"}, 2, {"short", "sequence length 32"});
  Json small = tiny_model();
  small["vocab_size"] = 100;
  write("small.json", small.dump());
  plan("small-plan.json", 1, "dp=1", "small.json");
  expect_refused(train("small-plan.json", "run"), 2, {"text", "id 256", "vocabulary"});
  EXPECT_FALSE(exists("run"));
}

TEST_F(BadInput, OutputsThatCannotBeWrittenAreSaidBeforeTheWork) {
  std::filesystem::create_directory(folder_ / "folder");
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  write("file", "x");
  for (const char* out : {"folder", "pipe", "file/x", "no/such/x"}) {
    expect_refused({"plan", "--model", "gpt2", "--machine", "dgx-a100-80gb", "--out", out}, 2, {out});
    expect_refused({"plan", "--model", "gpt2", "--machine", "dgx-a100-80gb", "--trace", out}, 2, {out});
    expect_refused({"profile", "--out", out}, 2, {out});
  }
  expect_refused(train("dp2.json", "file"), 2, {"file"});
  expect_refused(train("dp2.json", "file/run"), 2, {"file/run"});
  expect_refused({"stress", "dp2.json", "--data", "text", "--out", "file/x"}, 2, {"file/x"});
  EXPECT_TRUE(std::filesystem::is_fifo(folder_ / "pipe")) << "it was replaced";
  EXPECT_EQ(content_of(folder_ / "file"), "x");
}

TEST_F(BadInput, ALinkIsWrittenThrough) {
  write("real.json", "old");
  std::filesystem::create_symlink("real.json", folder_ / "link.json");
  expect_done({"plan", "--model", "gpt2", "--machine", "dgx-a100-80gb", "--devices", "1", "--out", "link.json"});
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "link.json"));
  EXPECT_TRUE(Json::parse(content_of(folder_ / "real.json")).contains("strategy"));
}

/// A limit on the size of files stands for the full disk: the same failing write, without root.
TEST_F(BadInput, AFullDiskIsExitThreeAndLeavesWhatWasComplete) {
  const std::string limited = "trap '' XFSZ; ulimit -f ";
  Said said = shell(limited + "8; \"$F\" data prepare text.txt --tokenizer bytes --out new");
  EXPECT_EQ(said.exit_code, 3) << said.log;
  EXPECT_EQ(lines_of(said.log), 1) << said.log;
  EXPECT_NE(said.log.find("new.bin"), std::string::npos) << said.log;
  said = shell(limited +
               "4; \"$F\" plan --model tiny.json --machine machine.json --devices 1 --seq-len 32 "
               "--global-batch 8 --out new.json >/dev/null");
  EXPECT_EQ(said.exit_code, 3) << said.log;
  EXPECT_NE(said.log.find("new.json"), std::string::npos) << said.log;
  for (const auto& [name, content] : tree(".")) EXPECT_EQ(name.find("new"), std::string::npos) << name;

  said = shell(limited + "200; \"$F\" train one.json --data text --out run >/dev/null");
  EXPECT_EQ(said.exit_code, 3) << said.log;
  EXPECT_NE(said.log.find("error: "), std::string::npos) << said.log;
  EXPECT_NE(said.log.find("safetensors"), std::string::npos) << said.log;
  EXPECT_TRUE(document_of({"checkpoint", "list", "run"})["checkpoints"].empty());
  expect_done(train("one.json", "run", {"--resume"}));  // with space again
}

TEST_F(BadInput, AResultThatCannotBeDeliveredIsNoSuccess) {
  if (!std::filesystem::is_character_file("/dev/full")) GTEST_SKIP();
  for (const char* command : {"model gpt2", "model gpt2 --json", "--help", "data inspect text",
                              "train dp2.json --data text --out run 2>log; test $? -eq 3 && cat log >&2; exit 3"}) {
    const Said said = shell("exec >/dev/full; \"$F\" " + std::string(command));
    EXPECT_EQ(said.exit_code, 3) << command << said.log;
    EXPECT_NE(said.log.find("error: standard output"), std::string::npos) << command << said.log;
  }
}

}  // namespace
}  // namespace foresail
