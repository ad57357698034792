#include <gtest/gtest.h>

#include "core/json.h"
#include "models/describe.h"

namespace foresail {
namespace {

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
