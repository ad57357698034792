// Datasets of other programs (written by write_foreign.py), read as they are.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "core/error.h"
#include "core/file.h"
#include "runtime/data/dataset.h"
#include "runtime/data/indexed_dataset.h"
#include "runtime/data/sample_source.h"
#include "runtime/data/shard_dataset.h"
#include "tests/checkpoint/temporary_folder.h"

namespace foresail {
namespace {

using Ids = std::vector<int32_t>;

std::filesystem::path foreign(const std::string& name) { return std::filesystem::path(TEST_FOLDER) / "foreign" / name; }

/// The rule of write_foreign.py.
Ids document(int32_t number, int32_t length, bool small = false) {
  Ids ids;
  for (int32_t j = 0; j < length; ++j) ids.push_back(small ? (31 * number + j + 1) % 128 : 100 * number + j + 1);
  return ids;
}

Ids shard_documents(int32_t end_of_text, int32_t first, const std::vector<int32_t>& lengths) {
  Ids ids;
  for (const int32_t length : lengths) {
    ids.push_back(end_of_text);
    const Ids next = document(first++, length);
    ids.insert(ids.end(), next.begin(), next.end());
  }
  return ids;
}

Ids all_of(const TokenDataset& data) {
  Ids ids(static_cast<size_t>(data.tokens()));
  data.read(0, ids);
  return ids;
}

std::vector<int64_t> lengths_of(const TokenDataset& data) {
  std::vector<int64_t> lengths;
  data.each_document([&](int64_t tokens) { lengths.push_back(tokens); });
  return lengths;
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input) << error.what();
    return error.what();
  }
  return "";
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

template <typename T>
std::string bytes_of(std::span<const T> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

/// Composed from the format's table: another shard of a few tokens.
std::string shard_bytes(int32_t magic, int32_t version, int32_t stated, const std::vector<uint16_t>& tokens) {
  std::vector<int32_t> header(256, 0);
  header[0] = magic, header[1] = version, header[2] = stated;
  return bytes_of(std::span<const int32_t>(header)) + bytes_of(std::span<const uint16_t>(tokens));
}

TEST(MegatronDataset, EveryIntegerTypeOfTheOriginalWriterIsRead) {
  for (const std::string type : {"u8", "i8", "i16", "i32", "i64", "u16"}) {
    const bool small = type == "u8" || type == "i8";
    Ids expected;
    for (const auto& [number, length] : {std::pair{0, 7}, {1, 12}, {2, 0}, {3, 2}}) {
      const Ids ids = document(number, length, small);
      expected.insert(expected.end(), ids.begin(), ids.end());
    }
    const auto data = open_dataset(foreign("megatron/" + type));
    EXPECT_EQ(name_of(data->type()), type);
    EXPECT_EQ(all_of(*data), expected) << type;
    EXPECT_EQ(lengths_of(*data), (std::vector<int64_t>{7, 12, 0, 2}));
    EXPECT_EQ(data->counts().sequences, 6);
    EXPECT_EQ(data->counts().documents, 4);
    EXPECT_EQ(data->origin().vocabulary, 0);
    EXPECT_TRUE(verify_dataset(foreign("megatron/" + type)).passed());
  }
}

TEST(MegatronDataset, IsNamedByItsPrefixOrByOneOfItsFiles) {
  for (const char* name : {"megatron/u16", "megatron/u16.bin", "megatron/u16.idx"}) {
    EXPECT_EQ(open_dataset(foreign(name))->prefix(), foreign("megatron/u16")) << name;
  }
  EXPECT_NE(refusal([] { open_dataset(foreign("megatron")); }).find("holds datasets with an index"), std::string::npos);
}

TEST(MegatronDataset, LengthsAreComputedOnRequestOnly) {
  EXPECT_FALSE(inspect_dataset(foreign("megatron/i32")).document_lengths.has_value());
  const DatasetSummary summary = inspect_dataset(foreign("megatron/i32"), true);
  EXPECT_EQ(summary.document_lengths,
            (std::vector<LengthBin>{{0, 0, 1, 0}, {2, 3, 1, 2}, {4, 7, 1, 7}, {8, 15, 1, 12}}));
  EXPECT_FALSE(summary.info.has_value());
}

TEST(MegatronDataset, OffsetsBeyondTwoGibibytesAreRight) {
  const TemporaryFolder folder;
  const std::filesystem::path prefix = folder.path() / "large";
  constexpr int64_t kFirst = 1'400'000'000, kSecond = 1'300'000'000, kLast = 3;  // 2.8, 2.6 GB and 6 bytes
  const std::vector<uint64_t> counts = {3, 4};
  const std::vector<int32_t> lengths = {kFirst, kSecond, kLast};
  const std::vector<int64_t> offsets = {0, 2 * kFirst, 2 * (kFirst + kSecond)}, documents = {0, 1, 2, 3};
  write_text(idx_path(prefix),
             std::string("MMIDIDX\0\0\1\0\0\0\0\0\0\0\10", 18) + bytes_of(std::span<const uint64_t>(counts)) +
                 bytes_of(std::span<const int32_t>(lengths)) + bytes_of(std::span<const int64_t>(offsets)) +
                 bytes_of(std::span<const int64_t>(documents)));
  const std::vector<uint16_t> end = {7, 8, 9};
  PosixFile bin = PosixFile::create(bin_path(prefix));  // sparse but for its end
  bin.write_at(2 * (kFirst + kSecond), std::as_bytes(std::span(end)));
  bin.close();
  const auto data = open_dataset(prefix);
  EXPECT_EQ(data->tokens(), kFirst + kSecond + kLast);
  EXPECT_EQ(data->next_document(kFirst + 1), kFirst + kSecond);
  Ids ids(4);
  data->read(kFirst + kSecond - 1, ids);
  EXPECT_EQ(ids, (Ids{0, 7, 8, 9}));
}

class Shards : public ::testing::Test {
 protected:
  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }
  void shard(const std::string& name, const std::vector<uint16_t>& tokens) const {
    write_text(path(name), shard_bytes(20240520, 1, static_cast<int32_t>(tokens.size()), tokens));
  }
  TemporaryFolder folder_;
};

TEST_F(Shards, OfAFolderAreOneStreamWithItsOwnValidation) {
  const Ids train = shard_documents(50256, 0, {5, 0, 40, 11, 20}), held_out = shard_documents(50256, 5, {9, 14});
  Ids expected = train;
  expected.insert(expected.end(), held_out.begin(), held_out.end());
  const std::string pattern = foreign("gpt2/tiny_*.bin").string();
  for (const std::filesystem::path& name : {foreign("gpt2"), foreign("gpt2/tiny"), std::filesystem::path(pattern)}) {
    const auto data = open_dataset(name);
    EXPECT_EQ(all_of(*data), expected) << name;
    EXPECT_EQ(data->own_validation_begin(), std::ssize(train));
    EXPECT_EQ(lengths_of(*data), (std::vector<int64_t>{6, 1, 41, 12, 21, 10, 15})) << "document 2 reaches over shards";
    EXPECT_EQ(data->counts().files, 3);
    EXPECT_EQ(data->origin().tokenizer, "gpt2");
  }
}

TEST_F(Shards, AShardThatIsNoFileIsNotLeftOut) {
  shard("x_train_000.bin", {50256, 1, 2, 3});
  std::filesystem::create_symlink("/nonexistent", path("x_train_001.bin"));
  for (const std::filesystem::path& name : {folder_.path(), path("x"), path("x_train_*.bin")}) {
    try {
      open_dataset(name);
      ADD_FAILURE() << name << " was read without the lost shard";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("x_train_001.bin"), std::string::npos) << error.what();
    }
  }
}

TEST_F(Shards, CanBeNamedOneByOneAndByPattern) {
  EXPECT_EQ(open_dataset(foreign("gpt2/tiny_train_000001.bin"))->tokens(), 30);
  const auto train = open_dataset(foreign("gpt2/*_train_*.bin"));
  EXPECT_EQ(train->tokens(), 81);
  EXPECT_FALSE(train->own_validation_begin().has_value()) << "no validation shard is among them";
  EXPECT_NE(refusal([] { open_dataset(foreign("gpt2/*_test_*.bin")); }).find("no file has such a name"),
            std::string::npos);
  EXPECT_NE(refusal([] { open_dataset(foreign("gpt2/huge")); }).find("no dataset is there"), std::string::npos);
}

TEST_F(Shards, OfLlama3AreReadAsU32) {
  const auto data = open_dataset(foreign("llama3/tiny"));
  EXPECT_EQ(all_of(*data), shard_documents(128000, 0, {3, 60, 8}));
  EXPECT_EQ(data->type(), TokenType::u32);
  EXPECT_EQ(data->origin().vocabulary, 128256);
  EXPECT_EQ(lengths_of(*data), (std::vector<int64_t>{4, 61, 9}));
}

TEST_F(Shards, FindDocumentsInBothDirections) {
  const auto data = open_dataset(foreign("gpt2"));
  const std::vector<int64_t> begins = {0, 6, 7, 48, 60, 81, 91};
  for (int64_t token = 0; token <= data->tokens(); ++token) {
    const auto next = std::lower_bound(begins.begin(), begins.end(), token);
    EXPECT_EQ(data->next_document(token), next == begins.end() ? data->tokens() : *next) << token;
    if (token > 0) {
      EXPECT_EQ(data->previous_document(token), *std::prev(next)) << token;
    }
  }
}

TEST_F(Shards, TheFirstValidationTokenBeginsADocumentEvenInTheMiddleOfOne) {
  shard("s_train_1.bin", {50256, 1, 2, 50256, 3});
  shard("s_val_1.bin", {4, 5, 6, 50256, 7});
  const auto data = open_dataset(path("s"));
  EXPECT_EQ(lengths_of(*data), (std::vector<int64_t>{3, 2, 3, 2}));
  EXPECT_EQ(data->next_document(4), 5);
  EXPECT_EQ(data->previous_document(8), 5);
  EXPECT_EQ(data->previous_document(5), 3);
}

TEST_F(Shards, DocumentsAreFoundFarBack) {
  std::vector<uint16_t> tokens(20'000, 5);
  tokens[3] = tokens[9'000] = 50256;
  shard("a.bin", tokens);
  const auto data = open_dataset(path("a.bin"));
  EXPECT_EQ(data->previous_document(20'000), 9'000);
  EXPECT_EQ(data->previous_document(9'000), 3);
  EXPECT_EQ(data->previous_document(3), 0);
  EXPECT_EQ(data->next_document(9'001), 20'000);
  EXPECT_EQ(validation_begin(*data, 100, 0.5), 9'000) << "the fraction cuts between documents";
}

TEST_F(Shards, ValidationShardsAreNeverTrainedOn) {
  const auto data = open_dataset(foreign("gpt2"));
  for (const double fraction : {0.0, 0.3}) {
    const SampleOptions options{.sequence_length = 8, .validation_fraction = fraction, .seed = 1, .vocabulary = 50257};
    const SampleSource training(*data, options, DataPart::training), held_out(*data, options, DataPart::validation);
    EXPECT_EQ(training.tokens(), 81);
    EXPECT_EQ(held_out.tokens(), 25);
    for (int64_t i = 0; i < 2 * training.samples(); ++i) EXPECT_LE(training.first_token(i) + 9, 81);
    EXPECT_EQ(held_out.first_token(0), 81);
  }
  const SampleOptions longer{.sequence_length = 30, .validation_fraction = 0.1, .seed = 1, .vocabulary = 50257};
  EXPECT_NE(refusal([&] { SampleSource(*data, longer, DataPart::validation); }).find("25 tokens for validation"),
            std::string::npos);
}

TEST_F(Shards, BeyondTwoGibibytesAreRead) {
  const auto file = path("large.bin");
  constexpr int64_t kTokens = 1'300'000'000;  // 2.6 GB, sparse but for its ends
  const std::vector<uint16_t> end = {1, 2, 3};
  PosixFile out = PosixFile::create(file);
  out.append(shard_bytes(20240520, 1, kTokens, {}));
  out.write_at(1024 + 2 * (kTokens - 3), std::as_bytes(std::span(end)));
  out.close();
  const auto data = open_dataset(file);
  EXPECT_EQ(data->tokens(), kTokens);
  Ids ids(4);
  data->read(kTokens - 4, ids);
  EXPECT_EQ(ids, (Ids{0, 1, 2, 3}));
}

TEST_F(Shards, EveryBrokenHeaderIsNamed) {
  const std::vector<uint16_t> tokens = {50256, 1, 2};
  const std::string sound = shard_bytes(20240520, 1, 3, tokens);
  const std::pair<std::string, const char*> cases[] = {
      {"", "shorter than the header"},
      {sound.substr(0, 1023), "shorter than the header"},
      {sound.substr(0, sound.size() - 1), "do not match the 3 tokens"},
      {sound + "x", "do not match the 3 tokens"},
      {shard_bytes(20240520, 1, -1, tokens), "do not match the -1 tokens"},
      {shard_bytes(20240520, 1, 2'147'483'647, tokens), "do not match the 2147483647 tokens"},
      {shard_bytes(20240520, 2, 3, tokens), "version 2, expected 1"},
      {shard_bytes(20240801, 7, 3, tokens), "do not match"},
      {shard_bytes(20240522, 1, 3, tokens), "a multiple-choice evaluation"},
      {shard_bytes(20240326, 3, 3, tokens), "a model of llm.c"},
      {shard_bytes(20240328, 2, 3, tokens), "a tokenizer of llm.c"},
      {shard_bytes(7, 1, 3, tokens), "is no token shard"},
      {shard_bytes(20240520, 1, 0, {}), "holds no tokens"},
  };
  for (const auto& [content, said] : cases) {
    write_text(path("s.bin"), content);
    const std::string refused = refusal([&] { open_dataset(path("s.bin")); });
    EXPECT_NE(refused.find(said), std::string::npos) << said << " | " << refused;
    EXPECT_NE(refused.find("s.bin"), std::string::npos);
    const DatasetVerdict verdict = verify_dataset(path("s.bin"));
    EXPECT_FALSE(verdict.passed());
  }
}

TEST_F(Shards, OfDifferentKindsDoNotMix) {
  shard("a_train_1.bin", {1, 2, 3});
  std::filesystem::copy(foreign("llama3/tiny_000000.bin"), path("a_train_2.bin"));
  EXPECT_NE(refusal([&] { open_dataset(folder_.path()); }).find("tokens of llama-3"), std::string::npos);
  std::filesystem::remove(path("a_train_2.bin"));
  shard("other.bin", {1});
  EXPECT_NE(refusal([&] { open_dataset(folder_.path()); }).find("neither train nor val"), std::string::npos);
  std::filesystem::remove(path("other.bin"));
  EXPECT_EQ(open_dataset(folder_.path())->tokens(), 3);
  std::filesystem::remove(path("a_train_1.bin"));
  EXPECT_NE(refusal([&] { open_dataset(folder_.path()); }).find("holds no .bin"), std::string::npos);
}

TEST_F(Shards, AreVerifiedAgainstTheirVocabulary) {
  shard("a.bin", {50256, 50255});
  EXPECT_TRUE(verify_dataset(path("a.bin")).passed());
  shard("a.bin", {50256, 50257});
  const DatasetVerdict verdict = verify_dataset(path("a.bin"));
  ASSERT_FALSE(verdict.passed());
  EXPECT_NE(verdict.problems[0].find("holds id 50257"), std::string::npos);
  const auto data = open_dataset(path("a.bin"));
  EXPECT_EQ(refusal([&] { check_vocabulary(*data, 50304); }), "");
  EXPECT_NE(refusal([&] { check_vocabulary(*data, 32000); }).find("tokens of gpt2"), std::string::npos);
}

TEST_F(Shards, HaveAnIdentityThatKnowsContentAndRoles) {
  std::vector<std::string> identities;
  const auto remember = [&] { identities.push_back(dataset_identity(*open_dataset(folder_.path()))); };
  shard("a_1.bin", {1, 2, 3});
  shard("a_2.bin", {4, 5});
  remember();
  shard("a_2.bin", {4, 6});
  remember();
  std::filesystem::rename(path("a_1.bin"), path("a_train_1.bin"));
  std::filesystem::rename(path("a_2.bin"), path("a_val_2.bin"));
  remember();
  EXPECT_NE(identities[0], identities[1]);
  EXPECT_NE(identities[1], identities[2]);
}

}  // namespace
}  // namespace foresail
