#include "runtime/checkpoint/folder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "core/error.h"
#include "core/file.h"
#include "runtime/checkpoint/inspect.h"
#include "tests/checkpoint/fixture.h"
#include "tests/checkpoint/temporary_folder.h"

namespace foresail {
namespace {

std::vector<std::string> names(const std::filesystem::path& folder) {
  std::vector<std::string> result;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    result.push_back(entry.path().filename().string());
  std::sort(result.begin(), result.end());
  return result;
}

void flip_byte(const std::filesystem::path& path, size_t from_end) {
  std::string content = read_file(path);
  content[content.size() - from_end] ^= 1;
  std::ofstream(path, std::ios::binary) << content;
}

TEST(CheckpointFolder, StepNamesAreExact) {
  EXPECT_EQ(step_of("step-0"), 0);
  EXPECT_EQ(step_of("step-120"), 120);
  for (const char* name :
       {"step-", "step-1.tmp", "step-01", "step--1", "step-1x", "step", "step-99999999999999999999"}) {
    EXPECT_FALSE(step_of(name).has_value()) << name;
  }
}

TEST(CheckpointFolder, KeepsTheNewestCompleteOnesByNumberNotByName) {
  const TemporaryFolder run;
  const auto folder = checkpoints_folder(run.path());
  for (const int64_t step : {8, 9, 10, 11}) save_from(folder, step, 1, 1, 1, DType::f32, 2);
  EXPECT_EQ(names(folder), (std::vector<std::string>{"step-10", "step-11"}));
  EXPECT_EQ(latest_complete(run.path())->step, 11);
}

TEST(CheckpointFolder, TornFoldersAreIgnoredAndLeftoversCleanedByTheNextSave) {
  const TemporaryFolder folder;
  save_from(folder.path(), 1, 1, 1, 1);
  std::filesystem::create_directory(folder.path() / "step-2");
  std::ofstream(folder.path() / "step-2" / "rank-00000.safetensors") << "torn";
  std::filesystem::copy(folder.path() / "step-1", folder.path() / "step-3.tmp");
  EXPECT_EQ(latest_complete(folder.path())->step, 1);
  const auto entries = list_checkpoints(folder.path());
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_FALSE(entries[1].complete);
  EXPECT_NE(entries[1].problem.find("no manifest.json"), std::string::npos);
  EXPECT_NE(checkpoint_list_to_json(entries).find("\"complete\": false"), std::string::npos);
  save_from(folder.path(), 4, 1, 1, 1, DType::f32, 1);
  EXPECT_EQ(names(folder.path()), (std::vector<std::string>{"step-2", "step-4"}));  // an incomplete one is not counted
}

TEST(CheckpointFolder, ResumeTakesTheNamedStepOrTheLatestAndListsWhatThereIs) {
  const TemporaryFolder folder;
  const auto refusal = [&](std::optional<int64_t> step) -> std::string {
    try {
      checkpoint_to_resume(folder.path(), step);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal({}).find("no complete checkpoint"), std::string::npos);
  EXPECT_NE(refusal(1), "");
  save_from(folder.path(), 3, 1, 1, 1);
  save_from(folder.path(), 5, 1, 1, 1);
  EXPECT_EQ(checkpoint_to_resume(folder.path(), {}).step, 5);
  EXPECT_EQ(checkpoint_to_resume(folder.path(), 3).step, 3);
  EXPECT_NE(refusal(4).find("step-3, step-5"), std::string::npos);
  std::filesystem::rename(folder.path() / "step-3", folder.path() / "step-4");
  EXPECT_NE(refusal(4).find("holds step 3"), std::string::npos);
}

TEST(CheckpointFolder, ResumingAnOlderStepSetsTheNewerOnesAsideUntilTheNextSave) {
  const TemporaryFolder folder;
  for (const int64_t step : {3, 5, 7}) save_from(folder.path(), step, 1, 1, 1);
  set_aside_after(folder.path(), 3);
  EXPECT_EQ(names(folder.path()), (std::vector<std::string>{"step-3", "step-5.superseded", "step-7.superseded"}));
  EXPECT_EQ(latest_complete(folder.path())->step, 3);
  save_from(folder.path(), 5, 1, 1, 1);
  EXPECT_EQ(names(folder.path()), (std::vector<std::string>{"step-3", "step-5"}));
}

TEST(CheckpointFolder, ScrubRenamesWhatIsDamaged) {
  const TemporaryFolder folder;
  save_from(folder.path(), 1, 1, 1, 1);
  save_from(folder.path(), 2, 1, 1, 1);
  flip_byte(folder.path() / "step-2" / "rank-00000.safetensors", 1);
  const auto verdicts = scrub_checkpoints(folder.path());
  ASSERT_EQ(verdicts.size(), 2u);
  EXPECT_TRUE(verdicts[0].passed());
  EXPECT_FALSE(verdicts[1].passed());
  EXPECT_EQ(names(folder.path()), (std::vector<std::string>{"step-1", "step-2.damaged"}));
  EXPECT_EQ(latest_complete(folder.path())->step, 1);
  EXPECT_NE(checkpoint_verdicts_to_json(verdicts).find("\"passed\": false"), std::string::npos);
}

std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    return error.what();
  }
  ADD_FAILURE() << "was not refused";
  return "";
}

TEST(CheckpointFolder, ARunInPlaceOfACheckpointIsASlipAndNotDamage) {
  const TemporaryFolder run;
  save_from(checkpoints_folder(run.path()), 7, 1, 1, 1);
  for (const auto& path : {run.path(), checkpoints_folder(run.path()), run.path() / "checkpoints/"}) {
    const std::string text = refusal_of([&] { verify_checkpoint(path); });
    EXPECT_NE(text.find("checkpoints/step-7"), std::string::npos) << text;
    EXPECT_EQ(text.find("damaged"), std::string::npos) << text;
    refusal_of([&] { diff_checkpoints(checkpoints_folder(run.path()) / "step-7", path); });
  }
  EXPECT_TRUE(verify_checkpoint(checkpoints_folder(run.path()) / "step-7/").passed());
  std::filesystem::remove(checkpoints_folder(run.path()) / "step-7/manifest.json");
  EXPECT_FALSE(verify_checkpoint(checkpoints_folder(run.path()) / "step-7").passed()) << "a torn one is damaged";
}

TEST(CheckpointFolder, ARunThatDoesNotExistIsRefused) {
  const TemporaryFolder folder;
  EXPECT_NO_THROW(require_run_folder(folder.path()));
  EXPECT_NE(refusal_of([&] { require_run_folder(folder.path() / "none"); }).find("no such folder"), std::string::npos);
  refusal_of([&] { scrub_checkpoints(folder.path() / "none"); });
  std::ofstream(folder.path() / "file") << "x";
  EXPECT_NE(refusal_of([&] { require_run_folder(folder.path() / "file"); }).find("a file"), std::string::npos);
}

TEST(CheckpointDiff, FindsNothingBetweenPlansAndTheExactDifferenceOtherwise) {
  const TemporaryFolder folder;
  save_from(folder.path(), 1, 1, 1, 3);
  save_from(folder.path(), 2, 2, 2, 1);
  EXPECT_TRUE(diff_checkpoints(folder.path() / "step-1", folder.path() / "step-2").identical);

  RankMemory memory = rank_memory(1, 1, 1, 0);
  memory.add("extra.weight", {2}, {0, 2, 0, 1});
  memory.fill(kAdamW);
  const int64_t element = memory.slices[0].element_offset + 11;
  const double before = memory.at(Quantity::moment1, element);
  memory.set(Quantity::moment1, element, before + 0.5);
  const auto segments = memory.segments(kAdamW);
  // The tied second holder is not what is stored: only the owner's change counts.
  save_checkpoint({folder.path(), state_at(3), segments, 9, 64}, {});
  const CheckpointDifference difference = diff_checkpoints(folder.path() / "step-1", folder.path() / "step-3");
  EXPECT_FALSE(difference.identical);
  EXPECT_DOUBLE_EQ(difference.maximum_absolute, 0.5);
  EXPECT_NEAR(difference.maximum_relative, 0.5 / (before + 0.5), 1e-12);
  int identical = 0, only_in_second = 0;
  for (const TensorDifference& tensor : difference.tensors) {
    identical += tensor.identical;
    only_in_second += tensor.only_in_second;
    EXPECT_DOUBLE_EQ(tensor.maximum_absolute, tensor.tensor == "embedding.weight#m" ? 0.5 : 0.0);
  }
  EXPECT_EQ(identical, 11);
  EXPECT_EQ(only_in_second, 3);
  EXPECT_NE(checkpoint_difference_to_json(difference).find("\"maximum_absolute\": 0.5"), std::string::npos);
}

TEST(CheckpointDiff, ComparesAcrossElementTypesAndCountsNanAsInfinite) {
  const TemporaryFolder folder;
  save_from(folder.path(), 1, 1, 1, 1, DType::f64);
  save_from(folder.path(), 2, 1, 1, 2, DType::f32);
  const CheckpointDifference rounding = diff_checkpoints(folder.path() / "step-1", folder.path() / "step-2");
  EXPECT_FALSE(rounding.identical);
  EXPECT_LT(rounding.maximum_relative, 1e-7);
  RankMemory memory = rank_memory(1, 1, 1, 0);
  memory.fill(kAdamW);
  memory.set(Quantity::parameter, 0, std::nan(""));
  const auto segments = memory.segments(kAdamW);
  save_checkpoint({folder.path(), state_at(3), segments, 9, 64}, {});
  EXPECT_TRUE(std::isinf(diff_checkpoints(folder.path() / "step-2", folder.path() / "step-3").maximum_absolute));
}

}  // namespace
}  // namespace foresail
