// Runs on what `data prepare` does not write, and on prompts that do not count.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "core/error.h"
#include "core/file.h"
#include "runtime/checkpoint/inspect.h"
#include "runtime/data/dataset.h"
#include "runtime/data/prepare.h"
#include "runtime/metrics/metrics_log.h"
#include "tests/workflow/small_plan.h"
#include "workflow/train.h"

namespace foresail {
namespace {

using testing::SmallPlan;

class Datasets : public ::testing::Test {
 protected:
  TrainOptions options(const std::filesystem::path& data, const char* run) const {
    TrainOptions options;
    options.plan = small_.path();
    options.data = data;
    options.out = small_.run(run);
    return options;
  }
  static TrainResult run(const TrainOptions& options) {
    check_train(options);
    auto communicator = make_local_communicator();
    return train(options, *communicator);
  }
  std::vector<double> losses(const char* run) const {
    std::vector<double> losses;
    for (const StepLine& line : read_metrics(small_.run(run) / "metrics.jsonl")) losses.push_back(line.loss);
    return losses;
  }
  std::string refusal(const TrainOptions& options) const {
    try {
      check_train(options);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::bad_input);
      return error.what();
    }
    return "";
  }
  SmallPlan small_;
};

TEST_F(Datasets, WithoutADescriptionTrainAsWithOne) {
  const TrainResult described = run(options(small_.data(), "described"));
  std::filesystem::remove(dataset_info_path(small_.data()));
  run(options(small_.data().string() + ".bin", "foreign"));
  EXPECT_EQ(losses("foreign"), losses("described"));
  EXPECT_TRUE(diff_checkpoints(described.checkpoint, small_.run("foreign") / "checkpoints/step-12").identical);
}

TEST_F(Datasets, OfAnotherVocabularyAreRefusedBeforeTheRunBegins) {
  std::string shard(1024, '\0');
  const int32_t header[] = {20240520, 1, 500};
  shard.replace(0, sizeof header, reinterpret_cast<const char*>(header), sizeof header);
  write_file_atomically(small_.folder() / "s_train_1.bin", shard + std::string(1000, '\1'));
  EXPECT_NE(refusal(options(small_.folder() / "s", "run")).find("shards named *_val_*.bin"), std::string::npos);
  write_file_atomically(small_.folder() / "s_val_1.bin", shard + std::string(1000, '\1'));
  const std::string refused = refusal(options(small_.folder() / "s", "run"));
  EXPECT_NE(refused.find("tokens of gpt2"), std::string::npos) << refused;
  EXPECT_NE(refusal(options(small_.folder() / "t", "run")).find("no dataset is there"), std::string::npos);
}

TEST_F(Datasets, PromptsThatDoNotCountAreReadButNotLearnt) {
  std::ofstream lines(small_.folder() / "in.jsonl");
  for (int i = 0; i < 200; ++i) {
    // What cannot be learnt stands in the prompt, the completion is always the same.
    lines << "{\"prompt\": \"" << i * 7919 % 10007 * 104729 << "\", \"completion\": \"aaaaaaaaaaaaaaaa\"}\n";
  }
  lines.close();
  PrepareOptions prepare;
  prepare.inputs = {small_.folder() / "in.jsonl"};
  prepare.out = small_.folder() / "pairs";
  const DatasetInfo info = prepare_dataset(prepare);
  const TrainResult masked = run(options(prepare.out, "masked"));
  EXPECT_EQ(masked.tokens, 12 * 4 * 16) << "all tokens are counted as read";
  std::filesystem::remove(dataset_info_path(prepare.out));
  std::filesystem::remove(prepare.out.string() + ".mask");
  const TrainResult whole = run(options(prepare.out, "whole"));
  ASSERT_TRUE(info.mask.has_value());
  EXPECT_LT(masked.loss, whole.loss - 0.5);
  EXPECT_LT(*masked.validation_loss, *whole.validation_loss - 0.5);
  TrainOptions resumed = options(prepare.out, "masked");
  resumed.resume = true;
  EXPECT_THROW(run(resumed), Error) << "without its mask it is another dataset";
}

}  // namespace
}  // namespace foresail
