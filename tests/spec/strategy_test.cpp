#include "spec/strategy.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/json.h"
#include "spec/forms_json.h"

namespace foresail {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_strategy(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    return error.what();
  }
  return "";
}

/// No key at its default.
Strategy every_key() {
  Strategy strategy;
  strategy.dp = 3;
  strategy.tp = 2;
  strategy.pp = 5;
  strategy.cp = 2;
  strategy.ep = 4;
  strategy.etp = 2;
  strategy.virtual_stages = 7;
  strategy.micro_batch = 11;
  strategy.schedule = ScheduleKind::zb_v;
  strategy.sequence_parallel = true;
  strategy.zero_stage = 2;
  strategy.recompute = Recompute::full;
  strategy.recompute_layers = {{0, 3, Recompute::selective, {}},
                               {4, 4, Recompute::none, {"attention_out.sum", "normed_2"}},
                               {6, 9, Recompute::selective, {"up"}},
                               {1048576, 1048576, Recompute::none, {}}};
  strategy.zero_group = 6;
  strategy.context = ContextKind::all_to_all;
  strategy.ragged_batch = true;
  strategy.stage_layers = {3, 2, 1048576};
  strategy.overlap = true;
  strategy.bucket_bytes = int64_t{1} << 40;
  strategy.reduce_dtype = DType::bf16;
  strategy.accumulate_dtype = DType::f64;
  strategy.moe_bound = 1.25;
  return strategy;
}

/// How strategies travel: by text and by the JSON of plans.
Strategy through_json(const Strategy& strategy) {
  const Json json = parse_json(strategy_to_json(strategy), "t");
  return strategy_from(JsonObject(json, "t"));
}

TEST(Strategy, TextReadsBackWithEveryKeyNamed) {
  const StrategyText parsed = parse_strategy(to_text(every_key()));
  EXPECT_EQ(parsed.strategy, every_key());
  EXPECT_EQ(parsed.named.size(), 22u);
  EXPECT_EQ(
      to_text(every_key()),
      "dp=3,tp=2,pp=5,cp=2,ep=4,etp=2,virtual_stages=7,micro_batch=11,schedule=zb-v,sequence_parallel=true,"
      "zero_stage=2,recompute=full,recompute_layers=0-3:selective/4:attention_out.sum+normed_2/"
      "6-9:selective+up/1048576:none,zero_group=6,bucket_bytes=1099511627776,context=all_to_all,"
      "ragged_batch=true,overlap=true,stage_layers=3+2+1048576,reduce_dtype=bf16,accumulate_dtype=f64,moe_bound=1.25");
  EXPECT_EQ(to_text(Strategy{}),
            "dp=1,tp=1,pp=1,cp=1,ep=1,etp=1,virtual_stages=1,micro_batch=1,schedule=1f1b,sequence_parallel=false,"
            "zero_stage=0,recompute=none");
}

TEST(Strategy, EveryKeyAloneSurvivesTextAndJson) {
  for (const std::string item : {"dp=3",
                                 "tp=2",
                                 "pp=5",
                                 "cp=2",
                                 "ep=4",
                                 "etp=2",
                                 "virtual_stages=7",
                                 "micro_batch=11",
                                 "schedule=gpipe",
                                 "schedule=interleaved",
                                 "schedule=zb-h1",
                                 "schedule=zb-v",
                                 "sequence_parallel=true",
                                 "zero_stage=3",
                                 "recompute=selective",
                                 "recompute=full",
                                 "recompute_layers=0:full",
                                 "recompute_layers=2-5:activated+normed_1.rstd/9:none",
                                 "zero_group=4",
                                 "context=all_to_all",
                                 "ragged_batch=true",
                                 "stage_layers=4",
                                 "stage_layers=1+2+3",
                                 "overlap=true",
                                 "bucket_bytes=25000000",
                                 "reduce_dtype=f16",
                                 "reduce_dtype=bf16",
                                 "reduce_dtype=f32",
                                 "reduce_dtype=f64",
                                 "accumulate_dtype=bf16",
                                 "accumulate_dtype=f64",
                                 "moe_bound=1.5"}) {
    const StrategyText parsed = parse_strategy(item);
    ASSERT_EQ(parsed.named.size(), 1u) << item;
    EXPECT_NE(parsed.strategy, Strategy{}) << item;
    EXPECT_NE(("," + to_text(parsed.strategy) + ",").find("," + item + ","), std::string::npos) << item;
    EXPECT_NE((" " + short_text(parsed.strategy) + " ").find(" " + item + " "), std::string::npos) << item;
    EXPECT_EQ(parse_strategy(to_text(parsed.strategy)).strategy, parsed.strategy) << item;
    EXPECT_EQ(through_json(parsed.strategy), parsed.strategy) << item;
  }
  EXPECT_EQ(through_json(Strategy{}), Strategy{});
}

TEST(Strategy, TextNamesOnlyWhatItSays) {
  const StrategyText parsed = parse_strategy(" tp = 8 , recompute=full ");
  EXPECT_EQ(parsed.strategy.tp, 8);
  EXPECT_EQ(parsed.strategy.recompute, Recompute::full);
  EXPECT_EQ(parsed.strategy.dp, 1);
  EXPECT_TRUE(parsed.names("tp"));
  EXPECT_TRUE(parsed.names("recompute"));
  EXPECT_FALSE(parsed.names("dp"));
  EXPECT_TRUE(parse_strategy("").named.empty());
}

TEST(Strategy, TextRefusesWithTheKeyInTheMessage) {
  EXPECT_NE(refusal("pt=8").find("key 'pt': is unknown"), std::string::npos);
  EXPECT_NE(refusal("tp=8,tp=8").find("key 'tp': is given twice"), std::string::npos);
  for (const std::string text : {"tp=0", "tp=-1", "tp=1048577", "tp=99999999999999999999", "tp=2.0", "tp=two",
                                 "tp=", "tp=2x", "tp=+2", "zero_stage=4", "virtual_stages=2000"}) {
    EXPECT_NE(refusal(text).find("give a whole number from"), std::string::npos) << text;
  }
  for (const std::string text : {"tp", "tp=2,", ",tp=2", "tp=2,,pp=2", "=2", "sequence_parallel=yes", "schedule=zigzag",
                                 "recompute=all", "recompute="}) {
    EXPECT_NE(refusal(text), "") << text;
  }
}

TEST(Strategy, TextRefusesWhatIsNoListOfLayers) {
  for (const std::string text : {"stage_layers=", "stage_layers=0", "stage_layers=3+", "stage_layers=+3",
                                 "stage_layers=3+-1", "stage_layers=3+2.5", "stage_layers=1048577"}) {
    EXPECT_NE(refusal(text).find("key 'stage_layers'"), std::string::npos) << text;
  }
}

TEST(Strategy, TextRefusesWhatIsNoRecomputeRule) {
  const std::pair<std::string, std::string> cases[] = {{"", "is not of the form LAYERS:WHAT"},
                                                       {"full", "is not of the form LAYERS:WHAT"},
                                                       {"0:full/", "is not of the form LAYERS:WHAT"},
                                                       {"3-1:full", "is no range of layers"},
                                                       {"0-1-2:full", "is no range of layers"},
                                                       {":full", "is not a whole number"},
                                                       {"-2:full", "is not a whole number"},
                                                       {"2-:full", "is not a whole number"},
                                                       {"0:", "names an empty tensor"},
                                                       {"0:up++activated", "names an empty tensor"},
                                                       {"0:up+activated+up", "names up twice"},
                                                       {"0:full+none", "names two presets"},
                                                       {"0:selective+up+full", "names two presets"},
                                                       {"0-4:full/4:none", "overlap or descend"},
                                                       {"4:full/0:none", "overlap or descend"},
                                                       {"1048577:full", "out of range"}};
  for (const auto& [rules, cause] : cases) {
    const std::string text = refusal("recompute_layers=" + rules);
    EXPECT_NE(text.find("key 'recompute_layers'"), std::string::npos) << rules << ": " << text;
    EXPECT_NE(text.find(cause), std::string::npos) << rules << ": " << text;
  }
}

TEST(Strategy, CopiesOfExpertsAreTheRanksOfAStageThatShareNone) {
  const auto shard = [](const std::string& text) { return parse_strategy(text).strategy.expert_shard_ranks(); };
  EXPECT_EQ(parse_strategy("dp=2,cp=2,tp=3,ep=3,etp=2").strategy.expert_copies(), 2);
  EXPECT_EQ(shard("dp=4,tp=2,ep=2"), 1) << "nothing is sharded";
  EXPECT_EQ(shard("dp=4,tp=2,ep=2,zero_stage=1"), 4);
  EXPECT_EQ(shard("dp=4,tp=2,ep=2,zero_stage=1,zero_group=2"), 2);
  EXPECT_EQ(shard("dp=6,ep=2,zero_stage=1,zero_group=2"), 1) << "2 does not divide 3 copies";
}

TEST(Strategy, TextRefusesChoicesWithTheirNames) {
  EXPECT_NE(refusal("schedule=zb").find("use 1f1b or gpipe or interleaved or zb-h1 or zb-v"), std::string::npos);
  EXPECT_NE(refusal("recompute=all").find("use none or selective or full"), std::string::npos);
  EXPECT_NE(refusal("context=ulysses").find("use ring or all_to_all"), std::string::npos);
  EXPECT_NE(refusal("overlap=1").find("use true or false"), std::string::npos);
  for (const std::string text : {"reduce_dtype=i32", "reduce_dtype=fp32", "reduce_dtype=", "accumulate_dtype=i32"}) {
    EXPECT_NE(refusal(text).find("use f64, f32, bf16 or f16"), std::string::npos) << text;
  }
  for (const std::string text : {"moe_bound=0.5", "moe_bound=nan", "moe_bound=", "moe_bound=2x", "moe_bound=1e9"}) {
    EXPECT_NE(refusal(text).find("give a number from 1"), std::string::npos) << text;
  }
  EXPECT_NE(refusal("zero_group=-1").find("give a whole number from 0"), std::string::npos);
}

TEST(Strategy, JsonHoldsEveryKeyAndTheDevices) {
  EXPECT_EQ(through_json(every_key()), every_key());
  const Json json = parse_json(strategy_to_json(every_key()), "t");
  EXPECT_EQ(json.size(), 23u) << "22 keys and devices";
  for (const std::string& key : parse_strategy(to_text(every_key())).named) EXPECT_TRUE(json.contains(key)) << key;
  EXPECT_EQ(json["devices"], 3 * 2 * 5 * 2);
  EXPECT_EQ(json["schedule"], "zb-v");
  EXPECT_EQ(json["stage_layers"], "3+2+1048576");
  EXPECT_EQ(json["overlap"], true);
}

TEST(Strategy, JsonOfOlderPlansReadsWithDefaults) {
  const Json json = parse_json(R"({"dp": 2, "schedule": "1f1b", "recompute": "full", "devices": 2})", "t");
  const Strategy strategy = strategy_from(JsonObject(json, "t"));
  EXPECT_EQ(strategy, parse_strategy("dp=2,recompute=full").strategy);
}

TEST(Strategy, JsonRefusesNamingFileAndField) {
  const std::pair<std::string, std::string> cases[] = {{"schedule", R"("")"},
                                                       {"schedule", R"("1f1b,tp=2")"},
                                                       {"recompute", R"("")"},
                                                       {"recompute", R"("all")"},
                                                       {"context", R"("")"},
                                                       {"context", R"("ringed")"},
                                                       {"recompute_layers", R"("0:full/0:none")"},
                                                       {"recompute_layers", R"("0:up,dp=2")"},
                                                       {"recompute_layers", R"(["0:full"])"},
                                                       {"stage_layers", R"("3+0")"},
                                                       {"stage_layers", "[3, 2]"},
                                                       {"reduce_dtype", R"("i32")"},
                                                       {"reduce_dtype", "16"},
                                                       {"accumulate_dtype", R"("i32")"},
                                                       {"moe_bound", "0.5"},
                                                       {"moe_bound", R"("2")"},
                                                       {"zero_group", "-1"},
                                                       {"zero_stage", "4"},
                                                       {"bucket_bytes", "1e13"},
                                                       {"overlap", R"("true")"},
                                                       {"ragged_batch", "1"},
                                                       {"devices", "7"}};
  for (const auto& [key, value] : cases) {
    const Json json = parse_json("{\"" + key + "\": " + value + "}", "plan.json");
    try {
      strategy_from(JsonObject(json, "plan.json"));
      ADD_FAILURE() << key << ": " << value;
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::bad_input);
      EXPECT_NE(std::string(error.what()).find("plan.json: field '" + key + "'"), std::string::npos) << error.what();
    }
  }
  const Json unknown = parse_json(R"({"zero": 1})", "plan.json");
  EXPECT_THROW(strategy_from(JsonObject(unknown, "plan.json")), Error);
}

TEST(Strategy, ShardRanksFollowZeroStageAndGroup) {
  EXPECT_EQ(parse_strategy("dp=4,cp=2").strategy.shard_ranks(), 1);
  EXPECT_EQ(parse_strategy("dp=4,cp=2,zero_group=2").strategy.shard_ranks(), 1) << "nothing is sharded";
  EXPECT_EQ(parse_strategy("dp=4,cp=2,zero_stage=1").strategy.shard_ranks(), 8);
  EXPECT_EQ(parse_strategy("dp=4,cp=2,zero_stage=3,zero_group=2").strategy.shard_ranks(), 2);
}

TEST(Strategy, ValuesThatTheStructHoldsAreLeftToLegality) {
  const Strategy strategy = parse_strategy("cp=2,ep=4,virtual_stages=2,zero_stage=3,sequence_parallel=true").strategy;
  EXPECT_EQ(strategy.cp, 2);
  EXPECT_EQ(strategy.ep, 4);
  EXPECT_EQ(strategy.virtual_stages, 2);
  EXPECT_EQ(strategy.zero_stage, 3);
  EXPECT_TRUE(strategy.sequence_parallel);
}

TEST(Strategy, MoreDevicesThanRanksCanCountAreRefused) {
  EXPECT_EQ(refusal("dp=1024,tp=1024"), "");
  EXPECT_NE(refusal("dp=1024,tp=1024,pp=2").find("more than 1048576 devices"), std::string::npos);
  EXPECT_NE(refusal("dp=1048576,tp=1048576,pp=1048576,cp=1048576"), "") << "and the product does not overflow";
}

}  // namespace
}  // namespace foresail
