// The verbs that need no ranks, from files to documents and exit codes.
#include "tests/system/command.h"

namespace foresail {
namespace {

TEST_F(System, ModelCountsAreExact) {
  const std::pair<const char*, int64_t> expected[] = {
      {"gpt2", 124439808},          {"gpt2-xl", 1557611200},    {"llama-2-7b", 6738415616},
      {"llama-2-70b", 68976648192}, {"llama-3-8b", 8030261248}, {"llama-3-70b", 70553706496},
      {"mistral-7b", 7241732096},   {"qwen2.5-7b", 7615616512}, {"qwen3-0.6b", 596049920}};
  for (const auto& [name, parameters] : expected) {
    const auto document = document_of({"model", name});
    EXPECT_EQ(document["parameters"], parameters) << name;
    for (const char* key :
         {"name", "family", "active_parameters", "layers", "vocabulary", "training_flops_per_token", "layer_table"}) {
      EXPECT_TRUE(document.contains(key)) << key;
    }
  }
}

TEST_F(System, ModelReadsAConfigAndNamesWhatIsWrongWithIt) {
  write("config.json",
        R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 256, "n_positions": 32})");
  EXPECT_EQ(document_of({"model", "config.json"})["layers"], 2);
  EXPECT_NE(run({"model", "config.json"}).output.find("2 layers"), std::string::npos);
  write("config.json", R"({"model_type": "gpt2", "n_layer": -2})");
  expect_refused({"model", "config.json"}, 2, {"config.json", "n_layer"});
  write("config.json", R"({"model_type": "gpt2", )");
  expect_refused({"model", "config.json"}, 2, {"config.json"});
  expect_refused({"model", "no/such/config.json"}, 2, {"no/such/config.json"});
  expect_refused({"model", "gpt9"}, 2, {"gpt9", "gpt2"});
  write("config.json", R"({"model_type": "mamba"})");
  expect_refused({"model", "config.json"}, 2, {"config.json", "mamba"});
}

TEST_F(System, DataIsPreparedInspectedAndVerified) {
  write("text.txt", "In the beginning was the Word.");
  const auto prepared = document_of({"data", "prepare", "text.txt", "--tokenizer", "bytes", "--out", "set/words"});
  EXPECT_EQ(prepared["tokens"], 31);  // 30 bytes and the end of the document
  EXPECT_EQ(document_of({"data", "inspect", "set/words"})["documents"], 1);
  EXPECT_NE(run({"data", "inspect", "set/words"}).output.find("31"), std::string::npos);
  EXPECT_EQ(run({"data", "verify", "set/words"}).exit_code, 0);

  // One changed byte: the answer is no.
  std::fstream file(folder_ / "set/words.bin", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4);
  file.put('x');
  file.close();
  const Said said = run({"data", "verify", "set/words"});
  EXPECT_EQ(said.exit_code, 1) << said.output;
  EXPECT_NE(said.output.find("words.bin"), std::string::npos) << said.output;
  document_of({"data", "verify", "set/words"}, 1);
}

TEST_F(System, PromptsAreLeftOutOfTheLoss) {
  write("pairs.jsonl", "{\"prompt\": \"abc\", \"completion\": \"defg\"}\n");
  const auto prepared = document_of({"data", "prepare", "pairs.jsonl", "--tokenizer", "bytes", "--out", "set/pairs"});
  EXPECT_EQ(prepared["mask"]["counted_tokens"], 5);
  EXPECT_EQ(document_of({"data", "inspect", "set/pairs"})["counted_tokens"], 5);
  EXPECT_NE(run({"data", "inspect", "set/pairs"}).output.find("5 (62.5 %)"), std::string::npos);
  EXPECT_EQ(run({"data", "verify", "set/pairs"}).exit_code, 0);
  std::filesystem::remove(folder_ / "set/pairs.mask");
  expect_refused({"data", "inspect", "set/pairs"}, 2, {"pairs.mask"});
}

TEST_F(System, TokenShardsOfLlmCAreReadAsTheyAre) {
  std::string shard(1024, '\0');
  shard.replace(0, 12, std::string("\x88\xd8\x34\1\1\0\0\0\3\0\0\0", 12));  // magic 20240520, version 1, 3 tokens
  shard += std::string("\x50\xc4\1\0\2\0", 6);                              // 50256, 1, 2
  for (const char* name : {"web_train_000001.bin", "web_val_000000.bin"}) write(name, shard);
  const auto document = document_of({"data", "inspect", "web", "--lengths"});
  EXPECT_EQ(document["tokens"], 6);
  EXPECT_EQ(document["documents"], 2);
  EXPECT_EQ(document["tokenizer"], "gpt2");
  EXPECT_EQ(document["validation_begin"], 3);
  EXPECT_NE(run({"data", "inspect", "web_*.bin"}).output.find("add --lengths"), std::string::npos);
  EXPECT_EQ(run({"data", "verify", "web"}).exit_code, 0);
  write("web_val_000000.bin", shard + "x");
  EXPECT_EQ(run({"data", "verify", "web"}).exit_code, 1);
  expect_refused({"data", "inspect", "web"}, 2, {"web_val_000000.bin"});
}

TEST_F(System, DataThatCannotBeUsedIsRefused) {
  expect_refused({"data", "prepare", "missing.txt", "--tokenizer", "bytes", "--out", "set"}, 2, {"missing.txt"});
  write("empty.txt", "");
  expect_refused({"data", "prepare", "empty.txt", "--tokenizer", "bytes", "--out", "set"}, 2, {});
  write("text.txt", "words");
  expect_refused({"data", "prepare", "text.txt", "--tokenizer", "runes", "--out", "set"}, 2, {"runes"});
  expect_refused({"data", "prepare", "text.txt", "--tokenizer", "bytes", "--out", "set", "--split", "page"}, 2,
                 {"page", "line"});
  expect_refused({"data", "inspect", "nothing"}, 2, {"nothing"});
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    EXPECT_EQ(entry.path().filename().string().rfind("set", 0), std::string::npos) << "half-written: " << entry.path();
  }
}

TEST_F(System, CheckpointsThatAreNotThereAreSaidToBeSo) {
  std::filesystem::create_directories(folder_ / "run");
  EXPECT_EQ(run({"checkpoint", "list", "run"}).exit_code, 0);
  EXPECT_TRUE(document_of({"checkpoint", "list", "run"}).is_object());
  expect_refused({"checkpoint", "verify", "run"}, 2, {"run"});
  expect_refused({"checkpoint", "verify", "nowhere"}, 2, {"nowhere"});
  expect_refused({"checkpoint", "diff", "nowhere", "run"}, 2, {"nowhere"});
}

TEST_F(System, PlanFindsAStrategyAndSimulateAgrees) {
  const std::vector<std::string> asked = {"--model", "gpt2-xl",   "--machine", "dgx-a100-80gb",  "--devices",
                                          "8",       "--seq-len", "1024",      "--global-batch", "64"};
  std::vector<std::string> plan = {"plan", "--out", "plan.json"};
  plan.insert(plan.end(), asked.begin(), asked.end());
  const auto document = document_of(plan);
  ASSERT_FALSE(document["plans"].empty());
  const auto& best = document["plans"][0];
  EXPECT_GT(best["predicted"]["step_seconds"], 0);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "plan.json"));
  for (const char* key : {"plans", "frontier", "advice", "searched"}) EXPECT_TRUE(document.contains(key)) << key;

  const auto& strategy = best["strategy"];
  std::string text;
  for (const auto& [key, value] : strategy.items()) {
    const std::string said = value.is_string() ? value.get<std::string>() : value.dump();
    if (key != "devices" && !said.empty()) text += (text.empty() ? "" : ",") + key + "=" + said;
  }
  std::vector<std::string> simulate = {"simulate", "--strategy", text};
  simulate.insert(simulate.end(), asked.begin(), asked.end());
  const auto simulated = document_of(simulate);
  EXPECT_DOUBLE_EQ(simulated["plans"][0]["predicted"]["step_seconds"].get<double>(),
                   best["predicted"]["step_seconds"].get<double>());
  EXPECT_EQ(simulated["plans"][0]["predicted"]["peak_bytes"], best["predicted"]["peak_bytes"]);
}

TEST_F(System, APlanThatCannotFitIsTheAnswerNo) {
  const Said said = run({"plan", "--model", "llama-3-70b", "--machine", "dgx-a100-80gb", "--devices", "1", "--seq-len",
                         "4096", "--out", "plan.json"});
  EXPECT_EQ(said.exit_code, 1) << said.output << said.log;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "plan.json"));
}

TEST_F(System, PlanAndSimulateRefuseWhatTheyCannotUse) {
  expect_refused({"plan", "--model", "gpt2", "--machine", "abacus"}, 2, {"abacus", "dgx-a100-80gb"});
  expect_refused({"plan", "--model", "gpt2", "--machine", "dgx-a100-80gb", "--fix", "tp=x"}, 2, {"tp"});
  expect_refused({"simulate", "--model", "gpt2", "--machine", "dgx-a100-80gb", "--devices", "8", "--seq-len", "1024",
                  "--global-batch", "8", "--strategy", "tp=5"},
                 2, {});
  expect_refused({"simulate", "--machine", "dgx-a100-80gb"}, 2, {"--model"});
  expect_refused({"simulate", "--program", "missing.json", "--machine", "dgx-a100-80gb"}, 2, {"missing.json"});
  expect_refused({"validate", "missing.csv"}, 2, {"missing.csv"});
}

}  // namespace
}  // namespace foresail
