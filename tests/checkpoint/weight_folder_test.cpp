// Folders of weights as others leave them: written by hand, without prefix, with buffers; and what is refused, by name.
#include "runtime/checkpoint/weight_folder.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/error.h"
#include "core/file.h"
#include "runtime/checkpoint/inspect.h"
#include "runtime/checkpoint/model_weights.h"
#include "runtime/checkpoint/transfer.h"
#include "tests/checkpoint/temporary_folder.h"

namespace foresail {
namespace {

const std::filesystem::path kHandmade = std::filesystem::path(TEST_FOLDER) / "handmade";

/// As handmade/write_handmade.py says.
float handmade_value(const std::string& tensor, int64_t index) {
  int64_t sum = 0;
  for (const unsigned char c : tensor) sum += c;
  return static_cast<float>((31 * sum + 7 * index) % 251 - 125) / 256;
}

/// Checks a checkpoint (logical orientation) against the formula (orientation of files).
void check_values(const std::filesystem::path& path, bool turned_in_file) {
  const Checkpoint checkpoint(path);
  for (const StoredTensor& tensor : checkpoint.manifest().tensors) {
    const bool turned = turned_in_file && tensor.shape.size() == 2 && tensor.tensor.find(".h.") != std::string::npos;
    int64_t seen = 0;
    checkpoint.read(tensor, {0, tensor.rows(), 0, tensor.columns()}, [&](int64_t row, int64_t column, auto bytes) {
      std::vector<double> values(bytes.size() / static_cast<size_t>(size_of(tensor.dtype)));
      widen_elements(bytes, tensor.dtype, values);
      for (const double value : values) {
        const int64_t index = turned ? column * tensor.rows() + row : row * tensor.columns() + column;
        ASSERT_EQ(value, handmade_value(tensor.tensor, index)) << tensor.tensor << " " << row << " " << column;
        ++column, ++seen;
      }
    });
    EXPECT_EQ(seen, tensor.rows() * tensor.columns()) << tensor.tensor;
  }
}

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    return error.what();
  }
  return "";
}

/// A copy of a handmade folder, to be spoilt.
class Spoilt {
 public:
  explicit Spoilt(const std::string& name) : path_(folder_.path() / name) {
    std::filesystem::copy(kHandmade / name, path_, std::filesystem::copy_options::recursive);
  }
  const std::filesystem::path& path() const { return path_; }
  void replace(const std::string& file, const std::string& from, const std::string& to) {
    std::string text = read_file(path_ / file);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write_file_atomically(path_ / file, text.replace(at, from.size(), to));
  }
  void add(const std::string& file, const std::string& tensor, std::vector<int64_t> shape, float first = 0) {
    int64_t elements = 1;
    for (const int64_t extent : shape) elements *= extent;
    std::vector<float> values(static_cast<size_t>(elements), 0.5F);
    values[0] = first;
    const TensorInMemory all[] = {{tensor, DType::f32, shape, std::as_bytes(std::span(values))}};
    write_safetensors(path_ / file, all);
  }
  std::string refusal() const {
    return error_of([&] { import_weights(path_, folder_.path() / "step-0"); });
  }

 private:
  TemporaryFolder folder_;
  std::filesystem::path path_;
};

void expect_named(const std::string& error, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_NE(error.find(part), std::string::npos) << part << " in: " << error;
}

TEST(WeightFolder, ByHandWithoutPrefixAndWithMasks) {
  const TemporaryFolder folder;
  const TransferResult result = import_weights(kHandmade / "gpt2-hub", folder.path() / "step-0");
  EXPECT_EQ(result.tensors, 28);
  ASSERT_EQ(result.notes.size(), 1u);
  expect_named(result.notes[0], {"4 buffers"});
  check_values(folder.path() / "step-0", true);
  EXPECT_TRUE(verify_checkpoint(folder.path() / "step-0").passed());
}

TEST(WeightFolder, ByHandInTwoFilesWithTheirIndex) {
  const TemporaryFolder folder;
  import_weights(kHandmade / "llama-sharded", folder.path() / "step-0");
  check_values(folder.path() / "step-0", false);
  const Checkpoint checkpoint(folder.path() / "step-0");
  EXPECT_EQ(checkpoint.manifest().find("lm_head.weight", Quantity::parameter)->dtype, DType::bf16);
  EXPECT_EQ(checkpoint.manifest().find("model.norm.weight", Quantity::parameter)->dtype, DType::f32);
  EXPECT_EQ(checkpoint.state().model_name, "llama-sharded");
}

TEST(WeightFolder, ACheckpointWrittenByHandLoadsAndIsSealedByImport) {
  const TemporaryFolder folder;
  check_values(kHandmade / "step-3", false);
  const CheckpointVerdict verdict = verify_checkpoint(kHandmade / "step-3");
  EXPECT_FALSE(verdict.passed());
  expect_named(verdict.problems.at(0), {"written by hand", "no digests"});
  import_weights(kHandmade / "step-3", folder.path() / "step-3");
  EXPECT_TRUE(verify_checkpoint(folder.path() / "step-3").passed());
  check_values(folder.path() / "step-3", false);
  EXPECT_EQ(Checkpoint(folder.path() / "step-3").state().step, 3);
  EXPECT_TRUE(diff_checkpoints(kHandmade / "step-3", folder.path() / "step-3").identical);
  export_checkpoint(kHandmade / "step-3", folder.path() / "hf");
  import_weights(folder.path() / "hf", folder.path() / "back");
  check_values(folder.path() / "back", false);
}

TEST(WeightFolder, OnlyACheckpointWithoutItsOwnDigestMayLackOthers) {
  Spoilt spoilt("step-3");
  const std::string digits(32, '0');
  spoilt.replace("manifest.json", "\"manifest_digest\": \"none\"", "\"manifest_digest\": \"" + digits + "\"");
  write_file_atomically(spoilt.path() / "manifest.json", seal_manifest(read_file(spoilt.path() / "manifest.json")));
  expect_named(error_of([&] { Checkpoint checkpoint(spoilt.path()); }), {"first.safetensors", "has no digest"});
}

// The committed files are the script's own, so what people read in it is what is tested.
TEST(WeightFolder, TheScriptWritesWhatIsCommitted) {
  if (std::system("command -v python3 >/dev/null 2>&1") != 0) GTEST_SKIP() << "no python3 here";
  const TemporaryFolder folder;
  const std::string command =
      "python3 '" + (kHandmade / "write_handmade.py").string() + "' '" + folder.path().string() + "'";
  ASSERT_EQ(std::system(command.c_str()), 0);
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (!entry.is_regular_file()) continue;
    const auto name = entry.path().lexically_relative(folder.path());
    EXPECT_EQ(read_file(entry.path()), read_file(kHandmade / name)) << name;
    ++files;
  }
  EXPECT_EQ(files, 9);
}

TEST(WeightFolder, IndexesThatDoNotFitTheirFilesAreRefused) {
  const std::string index = kWeightIndexName, second = "model-00002-of-00002.safetensors";
  {
    Spoilt spoilt("llama-sharded");
    std::filesystem::remove(spoilt.path() / second);
    expect_named(spoilt.refusal(), {index, second, "not there"});
  }
  {
    Spoilt spoilt("llama-sharded");
    spoilt.replace(index, "\"lm_head.weight\"", "\"lm_tail.weight\"");
    expect_named(spoilt.refusal(), {"lm_tail.weight", "model-00001-of-00002"});
  }
  {
    Spoilt spoilt("llama-sharded");
    spoilt.replace(index, "\"lm_head.weight\": \"model-00001-of-00002.safetensors\",", "");
    expect_named(spoilt.refusal(), {"lm_head.weight", index});
  }
  {
    Spoilt spoilt("llama-sharded");
    spoilt.replace(index, "\"model-00001-of-00002.safetensors\"", "\"../../etc/passwd\"");
    expect_named(spoilt.refusal(), {index, "not plain"});
  }
  {
    Spoilt spoilt("llama-sharded");
    spoilt.replace(index, "\"weight_map\"", "\"weights\"");
    expect_named(spoilt.refusal(), {index, "weight_map"});
  }
  {
    Spoilt spoilt("llama-sharded");
    spoilt.add("model-00003-of-00003.safetensors", "lm_head.weight", {21, 8});
    spoilt.replace(index, "\"weight_map\": {", "\"weight_map\": {\"x\": \"model-00003-of-00003.safetensors\",");
    expect_named(spoilt.refusal(), {"'lm_head.weight'", "model-00001-of-00002.safetensors too"});
  }
  {
    Spoilt spoilt("llama-sharded");
    spoilt.add("model.safetensors", "lm_head.weight", {21, 8});
    expect_named(spoilt.refusal(), {"model.safetensors lies beside"});
  }
}

TEST(WeightFolder, TensorsThatAreNotTheModelsAreRefused) {
  const std::string index = kWeightIndexName;
  const auto config = [](const std::string& from, const std::string& to) {
    Spoilt spoilt("llama-sharded");
    spoilt.replace("config.json", from, to);
    return spoilt.refusal();
  };
  expect_named(config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3"),
               {index, "no tensor 'model.layers.2.input_layernorm.weight' and 8 more"});
  expect_named(config("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1"),
               {"model-0000", "no tensor 'model.layers.1.input_layernorm.weight' and 8 more"});
  expect_named(config("\"intermediate_size\": 12", "\"intermediate_size\": 13"),
               {"model.layers.0.mlp.gate_proj.weight", "[12, 8]", "[13, 8]"});
  Spoilt bare("llama-sharded");
  std::filesystem::remove(bare.path() / "config.json");
  expect_named(bare.refusal(), {"config.json", "no such file"});
  Spoilt twice("gpt2-hub");
  std::filesystem::rename(twice.path() / "model.safetensors", twice.path() / "model-00001-of-00002.safetensors");
  twice.add("model-00002-of-00002.safetensors", "transformer.wte.weight", {19, 8});
  std::string map = "{\"weight_map\": {\"transformer.wte.weight\": \"model-00002-of-00002.safetensors\"";
  const SafetensorsFile first(twice.path() / "model-00001-of-00002.safetensors");
  for (const TensorEntry& entry : first.tensors()) {
    map += ", \"" + entry.name + "\": \"model-00001-of-00002.safetensors\"";
  }
  write_file_atomically(twice.path() / kWeightIndexName, map + "}}");
  expect_named(twice.refusal(), {"transformer.wte.weight", "as 'wte.weight' too"});
  Spoilt integers("gpt2-hub");
  integers.replace("model.safetensors", "\"wte.weight\": {\"dtype\": \"F32\"", "\"wte.weight\": {\"dtype\": \"I32\"");
  expect_named(integers.refusal(), {"wte.weight", "I32"});
}

/// The hub's GPT-2 with a head of its own beside the embedding.
std::string with_head(float first) {
  Spoilt spoilt("gpt2-hub");
  const std::string name = "model-00001-of-00002.safetensors", other = "model-00002-of-00002.safetensors";
  std::filesystem::rename(spoilt.path() / "model.safetensors", spoilt.path() / name);
  std::vector<float> head(19 * 8);
  for (size_t i = 0; i < head.size(); ++i) head[i] = handmade_value("transformer.wte.weight", static_cast<int64_t>(i));
  head[5] += first;
  const TensorInMemory all[] = {{"lm_head.weight", DType::f32, {19, 8}, std::as_bytes(std::span(head))}};
  write_safetensors(spoilt.path() / other, all);
  std::string map = "{\"weight_map\": {\"lm_head.weight\": \"" + other + "\"";
  const SafetensorsFile first_file(spoilt.path() / name);
  for (const TensorEntry& entry : first_file.tensors()) {
    map += ", \"" + entry.name + "\": \"" + name + "\"";
  }
  write_file_atomically(spoilt.path() / kWeightIndexName, map + "}}");
  const std::string refused = spoilt.refusal();
  if (!refused.empty()) return refused;
  const ModelWeights weights(spoilt.path(), parse_model_config(*WeightFolder(spoilt.path()).config(), "config.json"));
  return weights.notes().at(0);
}

TEST(WeightFolder, ATiedHeadInTheFilesIsLeftOutIfItIsTheEmbeddingAndRefusedOtherwise) {
  expect_named(with_head(0), {"lm_head.weight", "left out", "equal"});
  expect_named(with_head(1), {"lm_head.weight", "differs from the embedding", "tie_word_embeddings"});
  Spoilt headless("gpt2-hub");
  headless.replace("config.json", "\"n_embd\": 8", "\"n_embd\": 8, \"tie_word_embeddings\": false");
  expect_named(headless.refusal(), {"lm_head.weight", "\"tie_word_embeddings\": true"});
}

TEST(WeightFolder, WhatIsNoFolderOfWeightsIsToldApart) {
  const TemporaryFolder folder;
  const auto refusal = [&](const char* name) {
    return error_of([&] { import_weights(folder.path() / name, folder.path() / "out"); });
  };
  expect_named(refusal("missing"), {"missing", "no such folder"});
  write_file_atomically(folder.path() / "file", "x");
  expect_named(refusal("file"), {"file", "not a folder of weights"});
  std::filesystem::create_directory(folder.path() / "empty");
  expect_named(refusal("empty"), {"neither model.safetensors nor model.safetensors.index.json"});
  write_file_atomically(folder.path() / "empty/pytorch_model.bin", "x");
  expect_named(refusal("empty"), {"pytorch_model.bin", "safe_serialization"});
}

TEST(WeightFolder, AConfigThatDescribesAnotherModelThanThePlanIsSaid) {
  const WeightFolder folder(kHandmade / "llama-sharded");
  ModelSpec plan = parse_model_config(*folder.config(), "config.json");
  EXPECT_EQ(ModelWeights(kHandmade / "llama-sharded", plan).notes().size(), 1u) << "the rotary frequencies";
  plan.rope_theta = 500000;
  plan.residual_dropout = 0.1;
  const std::vector<std::string> notes = ModelWeights(kHandmade / "llama-sharded", plan).notes();
  ASSERT_GE(notes.size(), 2u);
  expect_named(notes[1], {"config.json", "10000", "500000", "the plan's is trained"});
}

TEST(WeightFolder, LayersThatPredictFurtherTokensAreLeftOutWhereTheConfigCountsThem) {
  Spoilt spoilt("llama-sharded");
  spoilt.replace("config.json", "\"num_hidden_layers\": 2",
                 "\"num_hidden_layers\": 1, \"num_nextn_predict_layers\": 1");
  const ModelWeights weights(spoilt.path(), parse_model_config(*WeightFolder(spoilt.path()).config(), "config.json"));
  expect_named(weights.notes().at(1), {"9 tensors", "further tokens", "left out"});
}

}  // namespace
}  // namespace foresail
