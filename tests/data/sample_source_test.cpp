#include "runtime/data/sample_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/error.h"
#include "runtime/data/indexed_dataset.h"
#include "runtime/data/permutation.h"
#include "tests/checkpoint/temporary_folder.h"

namespace foresail {
namespace {

TEST(Permutation, IsABijectionForEverySizeAndDiffersBetweenEpochsAndSeeds) {
  for (const int64_t count : {1, 2, 3, 4, 5, 7, 13, 64, 100, 1000, 65536, 65537, 99991}) {
    for (const uint64_t epoch : {0, 1, 7}) {
      const Permutation permutation(count, 42, epoch);
      std::vector<bool> seen(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) {
        const int64_t element = permutation(i);
        ASSERT_GE(element, 0);
        ASSERT_LT(element, count);
        ASSERT_FALSE(seen[static_cast<size_t>(element)]) << count;
        seen[static_cast<size_t>(element)] = true;
      }
    }
  }
  const Permutation a(1000, 42, 0), b(1000, 42, 1), c(1000, 43, 0);
  int equal_epochs = 0, equal_seeds = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    equal_epochs += a(i) == b(i);
    equal_seeds += a(i) == c(i);
  }
  EXPECT_LT(equal_epochs, 12);  // about one fixed point is expected between independent permutations
  EXPECT_LT(equal_seeds, 12);
}

TEST(Permutation, WorksForCountsFarBeyondMemory) {
  const int64_t count = (int64_t{1} << 50) + 12345;
  const Permutation permutation(count, 1, 2);
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 1000; ++i) seen.insert(permutation(count - 1 - i));
  EXPECT_EQ(seen.size(), 1000u);
  EXPECT_LT(*seen.rbegin(), count);
}

TEST(Permutation, SpreadsNeighboursOverTheWholeRange) {
  const int64_t count = 100'000;
  const Permutation permutation(count, 5, 0);
  double jump = 0;
  for (int64_t i = 0; i + 1 < count; ++i) jump += std::abs(static_cast<double>(permutation(i + 1) - permutation(i)));
  EXPECT_NEAR(jump / static_cast<double>(count) / static_cast<double>(count), 1.0 / 3, 0.01);
}

// Documents of the given lengths whose token at position p is p.
class SampleSourceTest : public ::testing::Test {
 protected:
  void write(const std::vector<int64_t>& lengths) {
    IndexedDatasetWriter writer(prefix(), TokenType::i32);
    int32_t next = 0;
    for (const int64_t length : lengths) {
      for (int64_t i = 0; i < length; ++i) writer.append(std::span(&next, 1)), ++next;
      writer.end_document();
    }
    writer.finish();
    std::filesystem::rename(idx_path(prefix()).string() + ".tmp", idx_path(prefix()));
    std::filesystem::rename(bin_path(prefix()).string() + ".tmp", bin_path(prefix()));
  }
  std::filesystem::path prefix() const { return folder_.path() / "d"; }
  static SampleOptions options(int64_t length, double fraction) { return {length, fraction, 9, 1 << 20}; }
  TemporaryFolder folder_;
};

TEST_F(SampleSourceTest, EveryTokenButTheFirstIsATargetExactlyOncePerEpoch) {
  write({1, 50, 0, 30, 20});
  const IndexedDataset data(prefix());
  const SampleSource source(data, options(10, 0), DataPart::training);
  ASSERT_EQ(source.samples(), 10);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int32_t> targets_seen, tokens(10), targets(10);
    for (int64_t i = 0; i < 10; ++i) {
      source.read(epoch * 10 + i, tokens, targets);
      for (size_t t = 0; t < 10; ++t) EXPECT_EQ(targets[t], tokens[t] + 1);
      targets_seen.insert(targets_seen.end(), targets.begin(), targets.end());
    }
    std::sort(targets_seen.begin(), targets_seen.end());
    for (int32_t i = 0; i < 100; ++i) EXPECT_EQ(targets_seen[static_cast<size_t>(i)], i + 1);
  }
}

TEST_F(SampleSourceTest, TheBatchesDoNotDependOnHowRanksAndMicroBatchesCutThem) {
  write(std::vector<int64_t>(20, 37));
  const IndexedDataset data(prefix());
  const SampleSource source(data, options(8, 0.1), DataPart::training);
  const int64_t batch = 12, length = 8;
  // Global batch after global batch; inside one, ranks and their micro-batches in any order.
  const auto read_run = [&](int64_t micro_batch, bool backwards) {
    std::vector<int32_t> all;
    for (int64_t position = 0; position < 20 * batch; position += batch) {  // passes several epochs
      std::vector<int32_t> tokens(static_cast<size_t>(batch * length)), targets(tokens.size());
      for (int64_t i = 0; i < batch; i += micro_batch) {
        const int64_t row = backwards ? batch - micro_batch - i : i;
        const auto at = static_cast<size_t>(row * length), count = static_cast<size_t>(micro_batch * length);
        source.fill(position, row, micro_batch, std::span(tokens).subspan(at, count),
                    std::span(targets).subspan(at, count));
      }
      all.insert(all.end(), tokens.begin(), tokens.end());
      all.insert(all.end(), targets.begin(), targets.end());
    }
    return all;
  };
  const auto reference = read_run(12, false);
  EXPECT_GT(20 * batch, 2 * source.samples());
  EXPECT_EQ(read_run(6, true), reference);
  EXPECT_EQ(read_run(4, false), reference);
  EXPECT_EQ(read_run(1, true), reference);
}

TEST_F(SampleSourceTest, ABatchMayReachFromOneEpochIntoTheNext) {
  write({31});
  const IndexedDataset data(prefix());
  const SampleSource source(data, options(10, 0), DataPart::training);
  ASSERT_EQ(source.samples(), 3);
  std::set<int64_t> first, second;
  for (int64_t i = 0; i < 3; ++i) first.insert(source.first_token(i)), second.insert(source.first_token(3 + i));
  EXPECT_EQ(first, (std::set<int64_t>{0, 10, 20}));
  EXPECT_EQ(second, first);
}

TEST_F(SampleSourceTest, ValidationIsTheEndOfTheDataCutBetweenDocumentsAndReadInOrder) {
  write({100, 100, 100, 55, 45});
  const IndexedDataset data(prefix());
  EXPECT_EQ(validation_begin(data, 10, 0.1), 355);
  EXPECT_EQ(validation_begin(data, 10, 0.26), 300);
  const SampleSource training(data, options(10, 0.1), DataPart::training);
  const SampleSource validation(data, options(10, 0.1), DataPart::validation);
  EXPECT_EQ(training.tokens(), 355);
  EXPECT_EQ(validation.tokens(), 45);
  EXPECT_EQ(validation.samples(), 4);
  for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(validation.first_token(i), 355 + 10 * i);
  EXPECT_EQ(validation.first_token(4), 355);
  for (int64_t i = 0; i < 2 * training.samples(); ++i) EXPECT_LE(training.first_token(i) + 11, 355);
}

TEST_F(SampleSourceTest, TheNearestUsableBoundaryIsTakenWhenTheWishedOneLeavesTooLittle) {
  write({100, 100, 3});
  const IndexedDataset data(prefix());
  EXPECT_EQ(validation_begin(data, 50, 0.01), 100);  // 200 would leave 3 tokens
}

TEST_F(SampleSourceTest, RefusalsNameTheMend) {
  write({200});
  const IndexedDataset one(prefix());
  const auto refusal = [&](const IndexedDataset& data, const SampleOptions& wanted, DataPart part) -> std::string {
    try {
      SampleSource source(data, wanted, part);
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::bad_input);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal(one, options(10, 0.1), DataPart::training).find("--split blank-lines"), std::string::npos);
  EXPECT_NE(refusal(one, options(150, 0.1), DataPart::training).find("validation_fraction to 0"), std::string::npos);
  EXPECT_NE(refusal(one, options(200, 0), DataPart::training).find("one sample needs 201"), std::string::npos);
  EXPECT_EQ(refusal(one, options(199, 0), DataPart::training), "");
  EXPECT_NE(refusal(one, options(10, 0), DataPart::validation).find("validation_fraction above 0"), std::string::npos);
  EXPECT_NE(refusal(one, options(10, 1.5), DataPart::training).find("outside [0, 1)"), std::string::npos);
  EXPECT_NE(refusal(one, options(0, 0), DataPart::training).find("below 1"), std::string::npos);
}

TEST_F(SampleSourceTest, IdsBeyondTheModelsVocabularyAreRefusedWhenRead) {
  write({21});
  const IndexedDataset data(prefix());
  SampleOptions wanted = options(10, 0);
  wanted.vocabulary = 20;  // the last target is id 20
  const SampleSource source(data, wanted, DataPart::training);
  std::vector<int32_t> tokens(10), targets(10);
  int refused = 0;
  for (int64_t i = 0; i < 2; ++i) {
    try {
      source.read(i, tokens, targets);
    } catch (const Error& error) {
      ++refused;
      EXPECT_NE(std::string(error.what()).find("id 20"), std::string::npos);
    }
  }
  EXPECT_EQ(refused, 1);
}

TEST_F(SampleSourceTest, DocumentsBeginInASampleWhereTheyBeginInTheData) {
  const std::vector<int64_t> lengths = {7, 1, 1, 0, 30, 4, 0, 0, 57};
  write(lengths);
  const IndexedDataset data(prefix());
  const SampleSource source(data, options(9, 0), DataPart::training);
  std::set<int64_t> begins;
  for (int64_t i = 0, begin = 0; i < std::ssize(lengths); begin += lengths[static_cast<size_t>(i++)])
    begins.insert(begin);
  std::vector<int32_t> starts(9);
  size_t most = 0;
  for (int64_t i = 0; i < source.samples(); ++i) {
    const int64_t first = source.first_token(i);
    std::vector<int32_t> expected = {0};  // what began before is cut there
    for (int64_t at = first + 1; at < first + 9; ++at) {
      if (begins.contains(at)) expected.push_back(static_cast<int32_t>(at - first));
    }
    const auto count = static_cast<size_t>(source.document_starts(i, starts));
    EXPECT_EQ(std::vector<int32_t>(starts.begin(), starts.begin() + static_cast<int64_t>(count)), expected) << first;
    most = std::max(most, count);
  }
  EXPECT_EQ(most, 3u);
}

TEST_F(SampleSourceTest, ASampleOfSingleTokensHasAsManyDocumentsAsTokens) {
  write(std::vector<int64_t>(40, 1));
  const IndexedDataset data(prefix());
  const SampleSource source(data, options(9, 0), DataPart::training);
  std::vector<int32_t> starts(9);
  ASSERT_EQ(source.document_starts(2, starts), 9);
  for (int32_t i = 0; i < 9; ++i) EXPECT_EQ(starts[static_cast<size_t>(i)], i);
}

TEST_F(SampleSourceTest, TheRateMeterReadsAtLeastOneSample) {
  write({100});
  const IndexedDataset data(prefix());
  const DataRate rate = measure_data_rate(SampleSource(data, options(10, 0), DataPart::training), 0, 0);
  EXPECT_GE(rate.samples, 1);
  EXPECT_EQ(rate.tokens, rate.samples * 10);
  EXPECT_GT(rate.tokens_per_second, 0);
}

}  // namespace
}  // namespace foresail
