#include "models/describe.h"

#include <gtest/gtest.h>

namespace foresail {
namespace {

TEST(Describe, TheTableAddsUpToTheTotals) {
  for (const std::string& name : catalogue_model_names()) {
    const ModelSpec model = load_model(name);
    if (model.moe.experts > 0) continue;  // their graphs come with the operators of experts
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

TEST(Describe, TextShowsParametersAndEveryKindOfLayer) {
  const std::string text = describe_model(load_model("gpt2"), 1024);
  for (const std::string word : {"124,439,808", "embedding", "block", "head", "qkv", "(attention)", "tied"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word;
  }
}

}  // namespace
}  // namespace foresail
