#include <gtest/gtest.h>

#include "profiler/basics.h"
#include "tests/trainer/thread_world.h"

namespace foresail {
namespace {

TEST(MeasureCommunication, EveryKindIsMeasuredSmallAndLargeWhateverTheBudget) {
  std::map<std::string, Measurement> measured;
  const auto errors = testing::run_world(2, [&](Communicator& communicator) {
    Team team(communicator, 1);
    auto own = measure_communication(team, {64, 4096, 1 << 20, 1 << 24}, 0, {{"send/2/64", {1, 0, 1}}});
    if (communicator.rank() == 0) measured = std::move(own);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  for (const char* kind : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "ring_shift", "broadcast"}) {
    for (const char* bytes : {"64", "1048576"}) {
      const std::string key = std::string(kind) + "/2/" + bytes;
      ASSERT_TRUE(measured.count(key)) << key;
      EXPECT_GT(measured.at(key).seconds, 0) << key;
    }
  }
  EXPECT_TRUE(measured.count("send/2/1048576"));
  EXPECT_FALSE(measured.count("send/2/64")) << "is known";
  EXPECT_EQ(measured.size(), 13u) << "nothing more without time";
}

}  // namespace
}  // namespace foresail
