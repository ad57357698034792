#include "workflow/profile.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "core/error.h"
#include "core/file.h"
#include "profiler/host.h"
#include "spec/machine.h"

namespace foresail {
namespace {

class ProfileTest : public ::testing::Test {
 protected:
  ProfileTest() : folder_(std::filesystem::temp_directory_path() / ("foresail-profile-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
    options_.out = folder_ / "machine.json";
  }
  ~ProfileTest() override { std::filesystem::remove_all(folder_); }

  /// What passes of these rank counts would have left.
  void leave_partial(const std::vector<int>& ranks) {
    Machine machine = describe_host();
    for (const int r : ranks) {
      ProfileTable& table = machine.tables.emplace_back();
      table.ranks = r;
      table.copy_bytes_per_second = table.peak_flops_per_second = 1e9;
    }
    write_file_atomically(folder_ / "machine.json.partial", machine_to_json(machine));
  }

  std::filesystem::path folder_;
  ProfileOptions options_;
};

TEST_F(ProfileTest, MeasuresEveryRankCountAtTheThreadsThatTheCoresLeave) {
  options_.ranks = 4;
  const auto passes = profile_passes(options_);
  ASSERT_EQ(passes.size(), 4u);
  double budget = 0;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(passes[i].ranks, static_cast<int>(4 - i));
    EXPECT_EQ(passes[i].threads, std::max(1, cores_of_host() / passes[i].ranks));
    budget += passes[i].budget_seconds;
  }
  EXPECT_LE(budget, options_.budget_seconds);
}

TEST_F(ProfileTest, ManyRanksAreMeasuredAtPowersOfTwoAndDivisors) {
  options_.ranks = 48;
  options_.budget_seconds = 600;
  for (const ProfilePass& pass : profile_passes(options_)) {
    EXPECT_TRUE(pass.ranks <= 8 || 48 % pass.ranks == 0 || (pass.ranks & (pass.ranks - 1)) == 0) << pass.ranks;
  }
}

TEST_F(ProfileTest, RefusesWhatCannotWorkBeforeAnythingIsStarted) {
  for (const auto change :
       {+[](ProfileOptions& o) { o.out = "/no/such/folder/machine.json"; }, +[](ProfileOptions& o) { o.out.clear(); },
        +[](ProfileOptions& o) { o.models = {"no-such-model"}; }, +[](ProfileOptions& o) { o.ranks = -1; },
        +[](ProfileOptions& o) { o.budget_seconds = 0; }, +[](ProfileOptions& o) { o.base = "no-such-machine"; }}) {
    ProfileOptions options = options_;
    change(options);
    try {
      profile_passes(options);
      ADD_FAILURE() << "was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::bad_input);
    }
  }
}

TEST_F(ProfileTest, ALengthBeyondTheLearnedPositionsIsRefusedNamingBoth) {
  write_file_atomically(folder_ / "config.json", R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2,
                                                     "n_positions": 128, "vocab_size": 67})");
  options_.models = {(folder_ / "config.json").string()};
  options_.sequence_length = 128;
  EXPECT_NO_THROW(profile_passes(options_));
  options_.sequence_length = 256;
  try {
    profile_passes(options_);
    ADD_FAILURE() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    EXPECT_NE(std::string(error.what()).find("256 is longer than the 128 learned positions"), std::string::npos);
  }
}

TEST_F(ProfileTest, FinishWritesAMachineThatReadsBackAndRemovesThePartialFile) {
  options_.ranks = 2;
  leave_partial({2, 1});
  const ProfileResult result = finish_profile(options_);
  const Machine machine = load_machine(options_.out.string());
  EXPECT_EQ(machine.kind, "profiled");
  EXPECT_EQ(machine.devices, 2);
  EXPECT_EQ(machine.tables.size(), 2u);
  EXPECT_EQ(machine.cores, cores_of_host());
  EXPECT_EQ(read_file(options_.out), result.json);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "machine.json.partial"));
}

TEST_F(ProfileTest, ABaseGivesWhatNoMeasurementGives) {
  options_.ranks = 1;
  options_.base = "dgx-a100-80gb";
  leave_partial({1});
  finish_profile(options_);
  const Machine machine = load_machine(options_.out.string()), base = load_machine("dgx-a100-80gb");
  EXPECT_EQ(machine.name, base.name);
  EXPECT_EQ(machine.usd_per_device_hour.value, base.usd_per_device_hour.value);
  EXPECT_EQ(machine.device.peak_flops_per_second.at("f32").value, 1e9) << "measured";
}

TEST_F(ProfileTest, WithoutAnyMeasurementThereIsNoMachine) {
  EXPECT_THROW(finish_profile(options_), Error);
  EXPECT_FALSE(std::filesystem::exists(options_.out));
}

}  // namespace
}  // namespace foresail
