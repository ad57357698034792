#include "models/describe.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace foresail {
namespace {

TEST(Describe, TheTableAddsUpToTheTotals) {
  for (const std::string& name : catalogue_model_names()) {
    const ModelSpec model = load_model(name);
    int64_t parameters = 0;
    double flops = 0;
    for (const LayerRow& row : layer_table(model, 512)) {
      parameters += row.layers * row.parameters;
      flops += static_cast<double>(row.layers) * row.forward_flops_per_token;
    }
    EXPECT_EQ(parameters, parameter_count(model)) << name;
    EXPECT_NEAR(3 * flops / training_flops_per_token(model, 512), 1, 1e-12) << name;
  }
}

TEST(Describe, TheTiedHeadCostsWorkButNoParameters) {
  const auto table = layer_table(load_model("gpt2"), 1024);
  const LayerRow& head = table.back();
  EXPECT_EQ(head.weight, "head");
  EXPECT_EQ(head.parameters, 0);
  EXPECT_EQ(head.tied_to, "token_embedding");
  EXPECT_EQ(head.forward_flops_per_token, 2.0 * 50257 * 768);
}

TEST(Describe, ActiveParametersLeaveOutExpertsThatATokenDoesNotMeet) {
  // Two of eight experts of 3 x 4096 x 14336.
  const ModelSpec mixtral = load_model("mixtral-8x7b");
  EXPECT_EQ(active_parameter_count(mixtral), 46'702'792'704 - 32LL * 6 * 3 * 4096 * 14336);
  // Eight of 256 of 3 x 7168 x 2048 in 58 layers.
  EXPECT_EQ(active_parameter_count(load_model("deepseek-v3")), 671'026'419'200 - 58LL * 248 * 3 * 7168 * 2048);
  EXPECT_EQ(active_parameter_count(load_model("gpt2")), 124'439'808);
  const std::string text = describe_model(mixtral, 1024);
  for (const std::string word : {"46,702,792,704", "12,879,925,248 active", "8 experts", "expert_gate_up"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word;
  }
}

TEST(Describe, KindsOfLayersAreCountedApart) {
  std::map<std::string, int64_t> layers;
  for (const LayerRow& row : layer_table(load_model("deepseek-v3"), 64)) layers[row.layer] = row.layers;
  EXPECT_EQ(layers,
            (std::map<std::string, int64_t>{{"embedding", 1}, {"block", 3}, {"expert_block", 58}, {"head", 1}}));
  for (const LayerRow& row : layer_table(load_model("mixtral-8x7b"), 64)) EXPECT_NE(row.layer, "block");
}

TEST(Describe, TextShowsParametersAndEveryKindOfLayer) {
  const std::string text = describe_model(load_model("gpt2"), 1024);
  for (const std::string word : {"124,439,808", "embedding", "block", "head", "qkv", "(attention)", "tied"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word;
  }
}

}  // namespace
}  // namespace foresail
