#include "models/describe.h"

#include <gtest/gtest.h>

#include "core/json.h"

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

TEST(Describe, TextShowsParametersAndEveryKindOfLayer) {
  const std::string text = describe_model(load_model("gpt2"), 1024);
  for (const std::string word : {"124,439,808", "embedding", "block", "head", "qkv", "(attention)", "tied"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word;
  }
}

TEST(Describe, JsonHasTheDocumentedKeys) {
  const Json document = parse_json(describe_model_json(load_model("qwen3-0.6b"), 4096), "output");
  EXPECT_EQ(document.at("name"), "qwen3-0.6b");
  EXPECT_EQ(document.at("family"), "qwen3");
  EXPECT_EQ(document.at("parameters"), 596'049'920);
  EXPECT_EQ(document.at("active_parameters"), 596'049'920);
  EXPECT_EQ(document.at("layers"), 28);
  EXPECT_EQ(document.at("vocabulary"), 151936);
  EXPECT_GT(document.at("training_flops_per_token").get<double>(), 6.0 * 440e6);
  EXPECT_EQ(document.at("layer_table").size(), layer_table(load_model("qwen3-0.6b"), 4096).size());
  EXPECT_EQ(document.at("layer_table").at(0).at("shape").at(0), 151936);
}

}  // namespace
}  // namespace foresail
