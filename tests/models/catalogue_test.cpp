#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "core/error.h"
#include "models/model_spec.h"

namespace foresail {
namespace {

TEST(Catalogue, HoldsAtLeastFifteenModelsSortedByName) {
  const auto names = catalogue_model_names();
  EXPECT_GE(names.size(), 15u);
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  for (const std::string name :
       {"gpt2",         "gpt2-medium",   "gpt2-large",       "gpt2-xl",     "gpt-3-175b",     "llama-2-7b",
        "llama-2-13b",  "llama-2-70b",   "llama-3-8b",       "llama-3-70b", "llama-3.1-405b", "llama-3.2-1b",
        "mistral-7b",   "qwen2.5-7b",    "qwen2.5-0.5b",     "qwen3-0.6b",  "qwen3-8b",       "bytes-llama-11m",
        "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
}

TEST(Catalogue, ParameterCountsAreExact) {
  // As published on the models' cards, or counted in their checkpoints.
  const std::map<std::string, int64_t> counts{
      {"gpt2", 124'439'808},
      {"gpt2-medium", 354'823'168},
      {"gpt2-large", 774'030'080},
      {"gpt2-xl", 1'557'611'200},
      {"llama-2-7b", 6'738'415'616},
      {"llama-2-13b", 13'015'864'320},
      {"llama-2-70b", 68'976'648'192},
      {"llama-3-8b", 8'030'261'248},
      {"llama-3-70b", 70'553'706'496},
      {"llama-3.1-405b", 405'853'388'800},
      {"llama-3.2-1b", 1'235'814'400},
      {"mistral-7b", 7'241'732'096},
      {"qwen2.5-7b", 7'615'616'512},
      {"qwen2.5-0.5b", 494'032'768},
      {"qwen3-0.6b", 596'049'920},
      {"qwen3-8b", 8'190'735'360},
      {"bytes-llama-11m", 11'015'040},
      {"mixtral-8x7b", 46'702'792'704},
      {"qwen3-30b-a3b", 30'532'122'624},
      {"deepseek-v2-lite", 15'706'484'224},
      {"deepseek-v3", 671'026'419'200},  // without the layer that predicts a further token
  };
  for (const auto& [name, count] : counts) EXPECT_EQ(parameter_count(load_model(name)), count) << name;
  // 175 billion in the paper's rounding (Brown et al. 2020, table 2.1).
  EXPECT_NEAR(static_cast<double>(parameter_count(load_model("gpt-3-175b"))), 174.6e9, 0.1e9);
}

TEST(Catalogue, MatrixParametersLeaveOutLookupsNormsAndBiases) {
  // gpt2: 12 layers of 12 * 768^2, and the tied head, which a token meets in a product.
  EXPECT_EQ(matrix_parameters(load_model("gpt2")), 12 * 12 * 768 * 768 + 50257 * 768);
  // llama-2-7b: everything but the embedding look-up and 65 norms.
  EXPECT_EQ(matrix_parameters(load_model("llama-2-7b")), 6'738'415'616 - 32000LL * 4096 - 65LL * 4096);
}

TEST(Catalogue, MatrixParametersOfExpertsAreThoseThatATokenMeets) {
  // Attention, router and two experts of each of 32 layers, and the head.
  EXPECT_EQ(matrix_parameters(load_model("mixtral-8x7b")),
            32 * (2 * 4096LL * 4096 + 2 * 4096LL * 1024 + 8 * 4096 + 2 * 3 * 4096LL * 14336) + 32000LL * 4096);
}

TEST(Catalogue, AttentionOfUnequalWidthsCountsTheirMean) {
  const ModelSpec lite = load_model("deepseek-v2-lite");
  EXPECT_DOUBLE_EQ(training_flops_per_token(lite, 4096) - 6.0 * static_cast<double>(matrix_parameters(lite)),
                   12.0 * 27 * 16 * ((192 + 128) / 2.0) * 4096);
}

TEST(Catalogue, TrainingFlopsCountTheFullAttentionSquare) {
  const ModelSpec model = load_model("gpt2");
  EXPECT_DOUBLE_EQ(training_flops_per_token(model, 1024),
                   6.0 * static_cast<double>(matrix_parameters(model)) + 12.0 * 12 * 768 * 1024);
  // The quickstart model: 72 MFLOP per token at 256.
  EXPECT_NEAR(training_flops_per_token(load_model("bytes-llama-11m"), 256), 72e6, 1e6);
}

TEST(Catalogue, ModelsSayWhatSetsThemApart) {
  const ModelSpec mistral = load_model("mistral-7b");
  EXPECT_EQ(mistral.name, "mistral-7b");
  EXPECT_EQ(mistral.family, "mistral");
  EXPECT_EQ(mistral.sliding_window, 4096);
  const ModelSpec small_llama = load_model("llama-3.2-1b");
  EXPECT_TRUE(small_llama.tied_embeddings);
  EXPECT_EQ(small_llama.rope_scaling, RopeScaling::llama3);
  EXPECT_EQ(small_llama.rope_factor, 32);
  EXPECT_EQ(small_llama.rope_original_positions, 8192);
  EXPECT_EQ(load_model("qwen2.5-7b").sliding_window, 0);
  EXPECT_TRUE(load_model("qwen2.5-7b").qkv_bias);
  EXPECT_FALSE(load_model("qwen2.5-7b").attention_out_bias);
  const ModelSpec qwen3 = load_model("qwen3-0.6b");
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_NE(qwen3.heads * qwen3.head_dim, qwen3.hidden);
}

TEST(Catalogue, UnknownNameIsRefusedListingTheKnownOnes) {
  try {
    load_model("gpt-5");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    const std::string message = error.what();
    EXPECT_NE(message.find("gpt-5"), std::string::npos);
    EXPECT_NE(message.find("llama-3-8b"), std::string::npos);
  }
}

class ModelPath : public ::testing::Test {
 protected:
  std::filesystem::path folder_;
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ("models_" + std::to_string(::testing::UnitTest::GetInstance()->random_seed()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_ / "my-model");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
};

TEST_F(ModelPath, MayBeAFileOrTheFolderThatHoldsConfigJson) {
  std::ofstream(folder_ / "my-model" / "config.json") << R"({"model_type": "gpt2", "n_layer": 3})";
  for (const std::filesystem::path& path : {folder_ / "my-model", folder_ / "my-model" / "config.json"}) {
    const ModelSpec model = load_model(path.string());
    EXPECT_EQ(model.name, "my-model");
    EXPECT_EQ(model.layers, 3);
  }
}

TEST_F(ModelPath, FolderWithoutConfigIsRefused) {
  try {
    load_model((folder_ / "my-model").string());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    EXPECT_NE(std::string(error.what()).find("config.json"), std::string::npos);
  }
}

TEST_F(ModelPath, ErrorsNameTheFile) {
  std::ofstream(folder_ / "broken.json") << R"({"model_type": "gpt2", )";
  try {
    load_model((folder_ / "broken.json").string());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    EXPECT_NE(std::string(error.what()).find("broken.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace foresail
