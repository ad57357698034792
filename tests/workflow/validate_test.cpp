#include "workflow/validate.h"

#include <gtest/gtest.h>

#include <unistd.h>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/error.h"
#include "core/json.h"
#include "models/model_spec.h"
#include "workflow/measured_run.h"

namespace foresail {
namespace {

std::filesystem::path excerpt() { return std::filesystem::path(TEST_FOLDER) / "published_excerpt.csv"; }

const ValidatedRow& row_of(const ValidateResult& result, const std::string& id) {
  for (const ValidatedRow& row : result.rows) {
    if (row.id == id) return row;
  }
  throw std::runtime_error("no row " + id);
}

TEST(Validate, PublishedRunsArePricedOrRefusedByName) {
  ValidateOptions options;
  options.runs = excerpt();
  const ValidateResult result = validate(options);
  ASSERT_EQ(result.rows.size(), 6u);
  const std::string device = row_of(result, "megatron2021-40").refused;
  for (const char* part : {"'V100 (DGX-2)'", "gpu_mem_gb blank", "A100-SXM-80GB"}) {
    EXPECT_NE(device.find(part), std::string::npos) << device;
  }
  EXPECT_NE(validate_table(result).find(device), std::string::npos);
  for (const char* id :
       {"korthikanti2022-1", "korthikanti2022-2", "korthikanti2022-3", "megatron2021-1", "megatron2021-17"}) {
    const ValidatedRow& row = row_of(result, id);
    EXPECT_EQ(row.refused, "") << id;
    EXPECT_GT(row.predicted_seconds, 0);
    // Structure, not tuning: no constant was fitted on these rows, and yet a wrong op or switch would be further off.
    EXPECT_NEAR(row.predicted_seconds / row.measured_seconds, 1, 0.15) << id;
    EXPECT_LT(row.low, row.measured_seconds);
    EXPECT_GT(row.high, row.measured_seconds);
  }
}

TEST(Validate, RowsRunWithTheirSwitches) {
  ValidateOptions options;
  options.runs = excerpt();
  const ValidateResult result = validate(options);
  const Strategy& cut = row_of(result, "korthikanti2022-2").strategy;
  EXPECT_TRUE(cut.sequence_parallel);
  // Megatron's selective: the attention core of every layer and nothing else.
  EXPECT_EQ(cut.recompute, Recompute::none);
  ASSERT_EQ(cut.recompute_layers.size(), 1u);
  EXPECT_EQ(cut.recompute_layers[0].last, 47);
  EXPECT_EQ(cut.recompute_layers[0].tensors.size(), 3u);
  const Strategy& interleaved = row_of(result, "korthikanti2022-3").strategy;
  EXPECT_EQ(interleaved.schedule, ScheduleKind::interleaved);
  EXPECT_EQ(interleaved.virtual_stages, 3);
  EXPECT_EQ(interleaved.recompute, Recompute::full);
}

TEST(Validate, WhatARowDoesNotSayIsListed) {
  ValidateOptions options;
  options.runs = excerpt();
  const ValidateResult result = validate(options);
  const ValidatedRow& open = row_of(result, "megatron2021-1");
  EXPECT_EQ(open.assumed.at("micro_batch"), "planner");
  EXPECT_EQ(open.assumed.at("vpp"), "stack");
  EXPECT_EQ(open.strategy.dp, 32);
  const ValidatedRow& stated = row_of(result, "megatron2021-17");
  EXPECT_EQ(stated.assumed.count("micro_batch"), 0u);
  EXPECT_EQ(stated.strategy.pp, 12);
}

TEST(Validate, TimeFollowsFromTheConventionOfTheSource) {
  ValidateOptions options;
  options.runs = excerpt();
  const ValidateResult result = validate(options);
  // 153 TFLOP/s per GPU by equation 3 of Narayanan et al. 2021 with B = 1536, s = 2048, l = 96, h = 12288, V = 51200.
  EXPECT_NEAR(row_of(result, "megatron2021-17").measured_seconds, 76.79, 0.05);
  EXPECT_DOUBLE_EQ(row_of(result, "korthikanti2022-1").measured_seconds, 1.42);
}

TEST(Validate, FiguresPerStackAddUp) {
  ValidateOptions options;
  options.runs = excerpt();
  const ValidateResult result = validate(options);
  ASSERT_EQ(result.sources.size(), 2u);
  for (const ValidatedSource& source : result.sources) {
    int64_t refused = 0;
    for (const auto& [reason, count] : source.refused) refused += count;
    EXPECT_EQ(source.rows, source.used + refused);
    EXPECT_TRUE(source.mape && source.bias && source.interval_coverage);
  }
  const Json json = parse_json(validate_result_to_json(result), "validate");
  EXPECT_EQ(json["rows"].size(), 6u);
  for (const char* key :
       {"stack", "rows", "used", "refused", "mape", "median_ape", "p90_ape", "max_ape", "bias", "groups",
        "spearman_mean", "regret_mean", "regret_max", "memory_mape", "feasible_called_infeasible",
        "infeasible_called_feasible", "interval_coverage", "interval_width"}) {
    EXPECT_TRUE(json["sources"][0].contains(key)) << key;
  }
  for (const char* key : {"id", "refused", "stack", "machine", "strategy", "assumed", "measured_seconds",
                          "predicted_seconds", "low", "high"}) {
    EXPECT_TRUE(json["rows"][0].contains(key)) << key;
  }
  EXPECT_NE(validate_table(result).find("korthikanti2022-1"), std::string::npos);
}

class ValidateFile : public ::testing::Test {
 protected:
  ValidateResult run(const std::string& text) {
    std::ofstream(path_) << text;
    ValidateOptions options;
    options.runs = path_;
    return validate(options);
  }
  void TearDown() override { std::filesystem::remove(path_); }
  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("validate_test_" + std::to_string(::getpid()));
  const std::string header_ =
      "id,stack,model,family,layers,hidden,heads,vocab,seq_len,gpu,gpu_mem_gb,n_gpus,tp,pp,dp,microbatch,global_batch,"
      "recompute,zero_stage,step_time_s\n";
};

TEST_F(ValidateFile, RefusalsNameTheirReason) {
  const ValidateResult result = run(header_ +
                                    "a,megatron-2021,x,gpt,2,64,4,512,,A100-SXM,80,8,1,1,8,1,8,full,,1\n"
                                    "b,megatron-2021,x,gpt,2,64,4,512,64,A100-SXM,80,8,1,1,8,1,8,full,,\n"
                                    "c,megatron-2021,x,gpt,2,64,4,512,64,A100-SXM,80,8,3,1,,1,8,full,,1\n"
                                    "d,nobody,x,gpt,2,64,4,512,64,A100-SXM,80,8,1,1,8,1,8,full,,1\n"
                                    "e,megatron-2021,x,gpt,2,64,4,512,64,A100-SXM,80,8,1,1,8,1,8,full,3,1\n"
                                    "f,megatron-2021,x,gpt,2,64,4,512,64,A100-SXM,80,8,8,1,1,1,8,full,,1\n"
                                    "g,megatron-2021,gpt2,,,,,,1024,A100-SXM,80,8,1,1,8,1,8,full,,0.1\n");
  const std::vector<std::string> expected = {"seq_len is blank", "no time", "degrees do not multiply to the devices"};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(result.rows[i].refused, expected[i]);
  EXPECT_EQ(result.rows[3].refused.rfind("stack 'nobody' is not in the catalogue", 0), 0u) << result.rows[3].refused;
  EXPECT_EQ(result.rows[4].refused, "");
  EXPECT_EQ(result.rows[4].strategy.zero_stage, 3);
  EXPECT_EQ(result.rows[5].refused.rfind("not legal: ", 0), 0u) << result.rows[5].refused;
  EXPECT_EQ(result.rows[6].refused, "");  // the catalogue knows the shape by name
}

TEST_F(ValidateFile, ARowWithoutStackIsPricedUnderForesailAndTheTableSaysSo) {
  const ValidateResult result = run(header_ + "g,,gpt2,,,,,,1024,A100-SXM-80GB,,8,1,1,8,1,8,full,,0.1\n");
  EXPECT_EQ(result.rows[0].refused, "");
  EXPECT_TRUE(result.usable());
  EXPECT_NE(validate_table(result).find("foresail (the default stack of 1 row"), std::string::npos)
      << validate_table(result);
}

TEST_F(ValidateFile, AMisspeltModelNamesTheBlankColumns) {
  const ValidateResult result = run(header_ + "g,,nosuch,,,,,,1024,A100-SXM,80,8,1,1,8,1,8,full,,0.1\n");
  EXPECT_EQ(result.rows[0].refused, "model 'nosuch' is no catalogue name and layers, hidden, heads, vocab are blank");
  EXPECT_FALSE(result.usable());
}

TEST(Validate, TheExampleFileIsUsed) {
  ValidateOptions options;
  options.runs = excerpt().parent_path().parent_path().parent_path() / "examples/measured_runs.csv";
  const ValidateResult result = validate(options);
  ASSERT_EQ(result.rows.size(), 2u);
  for (const ValidatedRow& row : result.rows) EXPECT_EQ(row.refused, "") << row.id;
}

TEST_F(ValidateFile, ADamagedNumberNamesFileLineAndColumn) {
  try {
    run(header_ + "a,megatron-2021,x,gpt,two,64,4,512,64,A100-SXM,80,8,1,1,8,1,8,full,,1\n");
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("line 2"), std::string::npos) << text;
    EXPECT_NE(text.find("'layers'"), std::string::npos) << text;
  }
}

TEST(MeasuredRun, ModelFlopsAreThreeQuartersOfHardwareFlopsWithoutTheHead) {
  ModelSpec m;
  m.layers = 96, m.hidden = 12288, m.vocabulary = 0;
  EXPECT_DOUBLE_EQ(gpt_model_flops(m, 1, 2048) / gpt_hardware_flops(m, 1, 2048), 0.75);
}

}  // namespace
}  // namespace foresail
