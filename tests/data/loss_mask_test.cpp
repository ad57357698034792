#include "runtime/data/loss_mask.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "core/file.h"
#include "runtime/data/dataset.h"
#include "runtime/data/indexed_dataset.h"
#include "runtime/data/prepare.h"
#include "runtime/data/sample_source.h"
#include "tests/checkpoint/temporary_folder.h"

namespace foresail {
namespace {

constexpr const char* kPairs =
    "{\"prompt\": \"ask\", \"completion\": \"answer\"}\n"
    "{\"text\": \"plain\"}\n"
    "{\"prompt\": \"\", \"completion\": \"all\"}\n"
    "{\"prompt\": \"longer question?\", \"completion\": \"\"}\n";
// One letter per token: C counts. The end of every document does.
constexpr const char* kMarks = "aaaCCCCCCCCCCCCCCCCCaaaaaaaaaaaaaaaaC";

class LossMaskTest : public ::testing::Test {
 protected:
  std::filesystem::path prefix() const { return folder_.path() / "d"; }
  DatasetInfo prepare(const std::string& jsonl) const {
    std::ofstream(folder_.path() / "in.jsonl") << jsonl;
    PrepareOptions options;
    options.inputs = {folder_.path() / "in.jsonl"};
    options.out = prefix();
    return prepare_dataset(options);
  }
  std::string marks() const {
    const IndexedDataset data(prefix());
    std::string text;
    for (int64_t i = 0; i < data.tokens(); ++i) text += data.mask()->counts(i) ? 'C' : 'a';
    return text;
  }
  std::string refusal() const {
    try {
      load_dataset_info(*open_dataset(prefix()));
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::bad_input);
      return error.what();
    }
    return "";
  }
  TemporaryFolder folder_;
};

TEST_F(LossMaskTest, PromptsDoNotCountAndEverythingElseDoes) {
  const DatasetInfo info = prepare(kPairs);
  EXPECT_EQ(marks(), kMarks);
  ASSERT_TRUE(info.mask.has_value());
  EXPECT_EQ(info.mask->counted_tokens, 18);
  EXPECT_EQ(info.tokens, 37);
  EXPECT_EQ(load_dataset_info(*open_dataset(prefix())), info);
  EXPECT_TRUE(verify_dataset(prefix()).passed());
  EXPECT_EQ(inspect_dataset(prefix()).counted_tokens, 18);
}

TEST_F(LossMaskTest, TheFileHasTheDocumentedBytes) {
  prepare(kPairs);
  std::string expected("FSMASK\0\1\45\0\0\0\0\0\0\0", 16);
  for (size_t i = 0; i < 37; ++i) {
    if (i % 8 == 0) expected += '\0';
    if (kMarks[i] == 'C') expected.back() = static_cast<char>(expected.back() | 1 << i % 8);
  }
  EXPECT_EQ(read_file(mask_path(prefix())), expected);
}

TEST_F(LossMaskTest, WithoutPromptsThereIsNoMaskAndAnOlderOneGoes) {
  prepare(kPairs);
  const DatasetInfo info = prepare("{\"text\": \"plain\"}");
  EXPECT_FALSE(info.mask.has_value());
  EXPECT_FALSE(std::filesystem::exists(mask_path(prefix())));
  EXPECT_EQ(refusal(), "");
  EXPECT_EQ(inspect_dataset(prefix()).counted_tokens, 6);
}

TEST_F(LossMaskTest, CountsOfRangesAreThoseOfTheirTokens) {
  LossMaskWriter writer(prefix());
  int64_t tokens = 0;
  for (int64_t run = 1; run <= 60; ++run) writer.append(run, run % 3 != 1), tokens += run;
  writer.finish();
  const LossMask mask(mask_path(prefix()).string() + ".tmp", tokens);
  EXPECT_EQ(mask.counted(0, tokens), writer.counted());
  for (int64_t first = 0; first < 200; first += 7) {
    int64_t counted = 0;
    for (int64_t length = 0; first + length < tokens; ++length) {
      ASSERT_EQ(mask.counted(first, length), counted) << first << " " << length;
      counted += mask.counts(first + length) ? 1 : 0;
    }
  }
}

TEST_F(LossMaskTest, AMaskBeginningLateCoversWhatWasBefore) {
  LossMaskWriter writer(prefix());
  writer.append(5'000'003, true);  // more than the writer buffers
  EXPECT_FALSE(writer.needed());
  writer.append(2, false);
  writer.append(3'000'000, true);
  writer.finish();
  const LossMask mask(mask_path(prefix()).string() + ".tmp", 8'000'005);
  EXPECT_EQ(mask.counted(0, 8'000'005), 8'000'003);
  EXPECT_EQ(mask.counted(5'000'003, 2), 0);
}

TEST_F(LossMaskTest, VerifyFindsEveryFlippedByte) {
  prepare(kPairs);
  const std::string sound = read_file(mask_path(prefix()));
  for (size_t i = 0; i < sound.size(); ++i) {
    std::string damaged = sound;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    std::ofstream(mask_path(prefix()), std::ios::binary) << damaged;
    const DatasetVerdict verdict = verify_dataset(prefix());
    ASSERT_FALSE(verdict.passed()) << i;
    EXPECT_NE(verdict.problems.front().find("d.mask"), std::string::npos) << verdict.problems.front();
  }
}

TEST_F(LossMaskTest, ADatasetAndItsMaskStayTogether) {
  prepare(kPairs);
  const std::string sound = read_file(mask_path(prefix()));
  std::filesystem::remove(mask_path(prefix()));
  EXPECT_NE(refusal().find("d.mask is missing"), std::string::npos) << refusal();
  EXPECT_FALSE(verify_dataset(prefix()).passed());
  prepare("{\"text\": \"plain\"}");
  std::ofstream(mask_path(prefix()), std::ios::binary) << sound;
  EXPECT_NE(refusal().find("is for 37 tokens, the dataset has 6"), std::string::npos) << refusal();
  std::ofstream(mask_path(prefix()), std::ios::binary) << std::string("FSMASK\0\1\6\0\0\0\0\0\0\0\7", 17);
  EXPECT_NE(refusal().find("describes no loss mask"), std::string::npos) << refusal();
  // Without a description, as Megatron's datasets are, the mask is taken as it is.
  std::filesystem::remove(dataset_info_path(prefix()));
  EXPECT_EQ(inspect_dataset(prefix()).counted_tokens, 3);
  std::ofstream(mask_path(prefix()), std::ios::binary) << std::string("FSMASK\0\1\6\0\0\0\0\0\0\0\107", 17);
  EXPECT_NE(refusal().find("beyond the last one"), std::string::npos) << refusal();
  std::filesystem::remove(mask_path(prefix()));
  std::filesystem::create_symlink("/nonexistent", mask_path(prefix()));
  EXPECT_NE(refusal().find("d.mask"), std::string::npos) << "a lost mask is not none: " << refusal();
}

TEST_F(LossMaskTest, TheMaskBelongsToTheIdentity) {
  prepare("{\"prompt\": \"ab\", \"completion\": \"c\"}");
  const std::string first = dataset_identity(*open_dataset(prefix()));
  prepare("{\"prompt\": \"a\", \"completion\": \"bc\"}");
  EXPECT_NE(dataset_identity(*open_dataset(prefix())), first) << "the same tokens";
}

TEST_F(LossMaskTest, LinesThatSayTooMuchOrTooLittleAreRefused) {
  const auto said = [&](const std::string& line) -> std::string {
    try {
      prepare(line);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(said("{\"text\": \"a\"}\n{\"prompt\": \"a\"}").find("line 2: field 'completion'"), std::string::npos)
      << said("{\"text\": \"a\"}\n{\"prompt\": \"a\"}");
  EXPECT_NE(said("{\"completion\": \"a\"}").find("field 'prompt'"), std::string::npos);
  EXPECT_NE(said("{\"prompt\": \"a\", \"completion\": \"b\", \"text\": \"c\"}").find("line 1"), std::string::npos);
  EXPECT_NE(said("{\"prompt\": 3, \"completion\": \"b\"}").find("field 'prompt'"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(mask_path(prefix()).string() + ".tmp"));
}

TEST_F(LossMaskTest, SamplesLeaveOutTheTargetsThatDoNotCount) {
  std::string lines;
  for (int i = 0; i < 30; ++i) lines += kPairs;
  prepare(lines);
  const auto data = open_dataset(prefix());
  const int64_t length = 16;
  const SampleSource source(*data, {length, 0.2, 5, 257}, DataPart::training);
  std::vector<int32_t> tokens(16), targets(16), next(16);
  int64_t left_out = 0;
  for (int64_t i = 0; i < source.samples(); ++i) {
    source.read(i, tokens, targets);
    const int64_t first = source.first_token(i);
    data->read(first + 1, next);
    int64_t counted = 0;
    for (int64_t j = 0; j < length; ++j) {
      const bool counts = kMarks[(first + 1 + j) % 37] == 'C';
      EXPECT_EQ(targets[static_cast<size_t>(j)], counts ? next[static_cast<size_t>(j)] : kUncountedTarget);
      counted += counts ? 1 : 0;
    }
    EXPECT_EQ(source.counted_targets(i), counted);
    EXPECT_EQ(*std::min_element(tokens.begin(), tokens.end()) < 0, false) << "prompts are read";
    left_out += length - counted;
  }
  EXPECT_GT(left_out, 100);
}

}  // namespace
}  // namespace foresail
