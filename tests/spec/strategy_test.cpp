#include "spec/strategy.h"

#include <gtest/gtest.h>

#include "core/error.h"

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

TEST(Strategy, TextReadsBackWithEveryKeyNamed) {
  Strategy strategy;
  strategy.dp = 3;
  strategy.tp = 2;
  strategy.pp = 5;
  strategy.cp = 2;
  strategy.ep = 4;
  strategy.etp = 2;
  strategy.virtual_stages = 7;
  strategy.micro_batch = 11;
  strategy.sequence_parallel = true;
  strategy.zero_stage = 2;
  strategy.recompute = Recompute::full;
  const StrategyText parsed = parse_strategy(to_text(strategy));
  EXPECT_EQ(parsed.strategy, strategy);
  EXPECT_EQ(parsed.named.size(), 12u);
  EXPECT_EQ(to_text(Strategy{}),
            "dp=1,tp=1,pp=1,cp=1,ep=1,etp=1,virtual_stages=1,micro_batch=1,schedule=1f1b,sequence_parallel=false,"
            "zero_stage=0,recompute=none");
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

TEST(Strategy, ValuesThatTheStructCannotHoldYetAreRefusedAsNotBuilt) {
  for (const std::string text : {"recompute=selective", "schedule=gpipe", "schedule=interleaved", "schedule=zb-h1"}) {
    EXPECT_NE(refusal(text).find("is not built yet"), std::string::npos) << text;
  }
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
