// Runs on real datasets: with a loss mask every strategy trains the model of one rank; the weight of a token is one over
// the tokens that count; token shards of other programs train.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "runtime/data/prepare.h"
#include "runtime/data/sample_source.h"
#include "tests/trainer/small_run.h"
#include "tests/trainer/thread_world.h"

namespace foresail {
namespace {

using testing::run_small;
using testing::run_world;
using testing::small_options;
using testing::small_request;
using testing::SmallResult;
using testing::TemporaryFolder;

constexpr int64_t kLength = 8;

SampleReader reader_of(const SampleSource& source) {
  return {[&source](int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) {
            source.read(index, tokens, targets);
          },
          [&source](int64_t index) { return source.counted_targets(index); }};
}

/// Questions and answers, prepared; open for training and validation.
struct MaskedData {
  TemporaryFolder folder;
  std::unique_ptr<TokenDataset> data;
  std::unique_ptr<SampleSource> training, validation;

  MaskedData() {
    std::ofstream lines(folder.path() / "in.jsonl");
    for (int i = 0; i < 120; ++i) {
      const std::string number = std::to_string(i % 10);
      lines << R"({"prompt": "Is )" << number << R"( even? ", "completion": ")" << (i % 2 == 0 ? "yes" : "no")
            << "\"}\n";
    }
    lines.close();
    PrepareOptions options;
    options.inputs = {folder.path() / "in.jsonl"};
    options.out = folder.path() / "d";
    prepare_dataset(options);
    data = open_dataset(options.out);
    const SampleOptions samples{
        .sequence_length = kLength, .validation_fraction = 0.2, .seed = 3, .vocabulary = kByteVocabulary};
    training = std::make_unique<SampleSource>(*data, samples, DataPart::training);
    validation = std::make_unique<SampleSource>(*data, samples, DataPart::validation);
  }
};

SessionRequest request_for(const std::string& strategy) {
  SessionRequest request = small_request();
  request.model.layers = 4;
  request.model.vocabulary = kByteVocabulary;
  request.job.global_batch = 12;
  request.job.checkpoint_interval_steps = 0;
  request.job.evaluation_interval_steps = 2;
  request.strategy = parse_strategy(strategy).strategy;
  return request;
}

TrainerOptions options_for(const std::filesystem::path& run, const MaskedData& data) {
  TrainerOptions options = small_options(run, 20);
  options.stop_after = 6;
  options.training = reader_of(*data.training);
  options.validation = reader_of(*data.validation);
  return options;
}

/// Losses, gradient norms and validation losses of every step.
std::vector<double> figures_of(const std::string& strategy, const MaskedData& data) {
  const TemporaryFolder folder;
  const SessionRequest request = request_for(strategy);
  std::vector<double> figures;
  const auto errors = run_world(static_cast<int>(request.strategy.devices()), [&](Communicator& communicator) {
    auto session = make_session(request, communicator, make_device("reference", 1));
    TrainerOptions options = options_for(folder.path(), data);
    options.on_step = [&](const StepRecord& record) {
      figures.insert(figures.end(), {record.loss, record.grad_norm, record.validation_loss.value_or(0)});
    };
    run_training(*session, communicator, options);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "") << strategy;
  return figures;
}

TEST(MaskedTraining, EveryStrategyTrainsTheModelOfOneRank) {
  const MaskedData data;
  const std::vector<double> expected = figures_of("micro_batch=2", data);
  ASSERT_EQ(expected.size(), 18u);
  EXPECT_LT(expected[15], expected[0]) << "the model learns";
  EXPECT_GT(expected[17], 0) << "evaluated";
  for (const char* strategy :
       {"dp=2,micro_batch=2", "cp=2,micro_batch=2", "pp=2,micro_batch=1", "tp=2,micro_batch=3",
        "dp=2,tp=2,micro_batch=1,zero_stage=2,sequence_parallel=true", "dp=3,micro_batch=1,zero_stage=3",
        "dp=2,cp=2,micro_batch=1,context=all_to_all", "dp=2,micro_batch=4,ragged_batch=true",
        "pp=2,micro_batch=2,virtual_stages=2,schedule=interleaved"}) {
    const std::vector<double> figures = figures_of(strategy, data);
    ASSERT_EQ(figures.size(), expected.size()) << strategy;
    for (size_t i = 0; i < figures.size(); ++i) EXPECT_NEAR(figures[i], expected[i], 1e-9) << strategy << " " << i;
  }
}

/// The same tokens; which targets count is turned round.
SampleReader turned(const SampleSource& source, const TokenDataset& data) {
  return {[&](int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) {
            source.read(index, tokens, targets);
            std::vector<int32_t> ids(targets.size());
            data.read(source.first_token(index) + 1, ids);
            for (size_t i = 0; i < ids.size(); ++i) targets[i] = targets[i] < 0 ? ids[i] : kMaskedTarget;
          },
          [&](int64_t index) { return kLength - source.counted_targets(index); }};
}

SampleReader unmasked(const SampleSource& source, const TokenDataset& data) {
  return [&](int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) {
    data.read(source.first_token(index), tokens);
    data.read(source.first_token(index) + 1, targets);
  };
}

TEST(MaskedTraining, TheLossIsTheMeanOverTheTargetsThatCount) {
  const MaskedData data;
  const SessionRequest request = request_for("micro_batch=2");
  const auto losses = [&](const SampleReader& reader) {
    const TemporaryFolder folder;
    TrainerOptions options = options_for(folder.path(), data);
    options.training = options.validation = reader;
    options.stop_after = 1;
    const TrainerReport report = run_small(request, options).report;
    return std::pair(report.loss, *report.validation_loss);
  };
  Program program = compile(request.model, request.job, request.strategy, request.target, 0).train;
  const SampleReader masked = reader_of(*data.training);
  const auto counted = static_cast<double>(counted_targets(program, 0, masked));
  const double all = 12 * kLength;
  ASSERT_GT(counted, 10);
  ASSERT_LT(counted, all - 10);
  // Of one state: what counts and what does not make up the whole.
  const double part = losses(masked).first, rest = losses(turned(*data.training, *data.data)).first,
               whole = losses(unmasked(*data.training, *data.data)).first;
  EXPECT_NEAR(counted * part + (all - counted) * rest, all * whole, 1e-9);
  EXPECT_GT(std::abs(part - rest), 1e-4) << "the two parts differ";
}

TEST(MaskedTraining, EvaluationWeighsBatchesByWhatCounts) {
  const MaskedData data;
  const SessionRequest request = request_for("micro_batch=2");
  auto communicator = make_local_communicator();
  auto session = make_session(request, *communicator, make_device("reference", 1));
  const TemporaryFolder folder;
  TrainerOptions options = options_for(folder.path(), data);
  options.validation = {};
  run_training(*session, *communicator, options);
  // Of two batches the second counts a single target.
  const auto counts = [](int64_t index, size_t place) { return index < 12 || (index == 12 && place == 3); };
  const SampleReader uneven{[&](int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) {
                              unmasked(*data.training, *data.data)(index, tokens, targets);
                              for (size_t i = 0; i < targets.size(); ++i) {
                                if (!counts(index, i)) targets[i] = kMaskedTarget;
                              }
                            },
                            [&](int64_t index) -> int64_t { return index < 12    ? kLength
                                                                   : index == 12 ? 1
                                                                                 : 0; }};
  const double first = *evaluate_loss(*session, uneven, 0, 1), second = *evaluate_loss(*session, uneven, 12, 1);
  EXPECT_GT(std::abs(first - second), 1e-3);
  EXPECT_NEAR(*evaluate_loss(*session, uneven, 0, 2), (96 * first + second) / 97, 1e-12);
  EXPECT_EQ(*evaluate_loss(*session, uneven, 24, 2), 0) << "nothing counts";
}

TEST(MaskedTraining, ABatchInWhichNothingCountsHasNoLossAndNoGradient) {
  const MaskedData data;
  const auto run = [&](const std::string& strategy) {
    std::vector<StepRecord> records;
    const TemporaryFolder folder;
    const SessionRequest request = request_for(strategy);
    const auto errors = run_world(static_cast<int>(request.strategy.devices()), [&](Communicator& communicator) {
      auto session = make_session(request, communicator, make_device("reference", 1));
      TrainerOptions options = options_for(folder.path(), data);
      options.validation = {};
      const auto empty = [](int64_t index) { return index / 12 == 2; };  // the third step
      options.training = {[&](int64_t index, std::span<int32_t> tokens, std::span<int32_t> targets) {
                            data.training->read(index, tokens, targets);
                            if (empty(index)) std::fill(targets.begin(), targets.end(), kMaskedTarget);
                          },
                          [&](int64_t index) { return empty(index) ? 0 : data.training->counted_targets(index); }};
      options.on_step = [&](const StepRecord& record) { records.push_back(record); };
      run_training(*session, communicator, options);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "") << strategy;
    return records;
  };
  const auto one = run("micro_batch=2"), many = run("dp=2,pp=2,micro_batch=1,zero_stage=1");
  ASSERT_EQ(one.size(), 6u);
  ASSERT_EQ(many.size(), 6u);
  EXPECT_EQ(one[2].loss, 0);
  EXPECT_EQ(one[2].grad_norm, 0);
  EXPECT_FALSE(one[2].skipped);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_TRUE(std::isfinite(one[i].loss));
    EXPECT_EQ(one[i].loss > 0, i != 2) << i;
    EXPECT_NEAR(many[i].loss, one[i].loss, 1e-9);
    EXPECT_NEAR(many[i].grad_norm, one[i].grad_norm, 1e-9);
  }
}

TEST(Shards, OfGpt2TrainAModelOfItsVocabulary) {
  const TemporaryFolder folder;
  std::vector<int32_t> header(256, 0);
  header[0] = 20240520, header[1] = 1, header[2] = 600;
  for (const char* name : {"t_train_1.bin", "t_val_1.bin"}) {
    std::ofstream file(folder.path() / name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(header.data()), 1024);
    for (int i = 0; i < 600; ++i) {
      const auto id = static_cast<uint16_t>(i % 50 == 0 ? 50256 : 40'000 + i % 7);
      file.write(reinterpret_cast<const char*>(&id), 2);
    }
  }
  const auto data = open_dataset(folder.path());
  const SampleOptions samples{.sequence_length = kLength, .validation_fraction = 0.1, .seed = 3, .vocabulary = 50257};
  const SampleSource training(*data, samples, DataPart::training), validation(*data, samples, DataPart::validation);
  SessionRequest request = small_request();
  request.model.vocabulary = 50257;
  request.model.layers = 1;
  request.job.optimizer.learning_rate = 0.05;
  request.job.checkpoint_interval_steps = 0;
  TrainerOptions options = small_options(folder.path() / "run", 6);
  options.training = reader_of(training);
  options.validation = reader_of(validation);
  std::vector<double> losses;
  options.on_step = [&](const StepRecord& record) { losses.push_back(record.loss); };
  const SmallResult result = run_small(request, options);
  EXPECT_NEAR(losses.front(), std::log(50257.0), 0.3);
  EXPECT_LT(losses.back(), losses.front() - 1);
  EXPECT_LT(*result.report.validation_loss, losses.front() - 1);
}

}  // namespace
}  // namespace foresail
