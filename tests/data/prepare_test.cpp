#include "runtime/data/prepare.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <zlib.h>
#include <zstd.h>

#include <csignal>
#include <fstream>

#include "core/digest.h"
#include "core/error.h"
#include "core/file.h"
#include "runtime/data/byte_source.h"
#include "runtime/tokenizer/byte_alphabet.h"
#include "runtime/tokenizer/encoder.h"
#include "tests/checkpoint/temporary_folder.h"

namespace foresail {
namespace {

std::string gzip(const std::string& text) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return out;
}

class PrepareTest : public ::testing::Test {
 protected:
  std::filesystem::path input(const std::string& name, const std::string& text) {
    const auto path = folder_.path() / name;
    std::ofstream(path, std::ios::binary) << text;
    options_.inputs.push_back(path);
    return path;
  }
  std::filesystem::path prefix() const { return folder_.path() / "out" / "d"; }
  DatasetInfo prepare() {
    options_.out = prefix();
    return prepare_dataset(options_);
  }
  std::vector<std::string> documents() const {
    const IndexedDataset data(prefix());
    std::vector<std::string> result;
    for (int64_t d = 0; d < data.documents(); ++d) {
      std::vector<int32_t> ids(static_cast<size_t>(data.document_begin(d + 1) - data.document_begin(d)));
      data.read(data.document_begin(d), ids);
      EXPECT_EQ(ids.back(), kByteEndOfDocument);
      result.push_back(decode_bytes(ids));
    }
    return result;
  }
  std::string refusal(Exit exit = Exit::bad_input) {
    try {
      prepare();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), exit) << error.what();
      EXPECT_TRUE(!std::filesystem::exists(folder_.path() / "out") ||
                  std::filesystem::is_empty(folder_.path() / "out"));
      return error.what();
    }
    return "";
  }
  TemporaryFolder folder_;
  PrepareOptions options_;
};

using Texts = std::vector<std::string>;

TEST_F(PrepareTest, AFileIsOneDocumentUnlessToldOtherwise) {
  input("a.txt", "first\n\nstill first\r\n");
  input("b.txt", "second");
  const DatasetInfo info = prepare();
  EXPECT_EQ(documents(), (Texts{"first\n\nstill first\r\n", "second"}));
  EXPECT_EQ(info.tokens, 20 + 1 + 6 + 1);
  EXPECT_EQ(info.vocabulary, 257);
  EXPECT_EQ(info.token_type, "u16");
}

TEST_F(PrepareTest, LinesAndParagraphsBecomeDocuments) {
  input("a.txt", "\n\none\ntwo\r\n\r\n\n\nthree\n");
  options_.split = DocumentSplit::blank_lines;
  prepare();
  EXPECT_EQ(documents(), (Texts{"one\ntwo", "three"}));
  options_.split = DocumentSplit::line;
  prepare();
  EXPECT_EQ(documents(), (Texts{"one", "two", "three"}));
}

TEST_F(PrepareTest, CarriageReturnsInsideALineAreText) {
  input("a.txt", "a\rb\r\r\nc\r");
  options_.split = DocumentSplit::line;
  prepare();
  EXPECT_EQ(documents(), (Texts{"a\rb\r", "c\r"}));
}

TEST_F(PrepareTest, DocumentsMayBeLongerThanAnyBufferAndCutAnywhere) {
  std::string text;
  Texts expected;
  for (int i = 0; i < 40; ++i) {
    expected.push_back(std::string(20'000 + static_cast<size_t>(i) * 997, static_cast<char>('a' + i % 26)));
    text += expected.back() + "\r\n\r\n";
  }
  input("a.txt", text);
  options_.split = DocumentSplit::blank_lines;
  prepare();
  EXPECT_EQ(documents(), expected);
}

TEST_F(PrepareTest, JsonLinesGiveTheirTextField) {
  input("a.jsonl", "{\"text\":\"caf\\u00e9\\n\",\"id\":1}\n\n{\"text\":\"\"}\n{\"text\":\"b\"}");
  prepare();
  EXPECT_EQ(documents(), (Texts{"caf\xc3\xa9\n", "b"}));
}

TEST_F(PrepareTest, CompressedInputsAreToldByTheirContent) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(i * 7919) + " ";
  input("a.txt", gzip(text.substr(0, 300'000)) + gzip(text.substr(300'000)));  // two members
  input("b.txt.zst", zstd(text) + zstd("tail"));
  input("c.jsonl.gz", gzip("{\"text\":\"json\"}\n"));
  input("d.zst", zstd(std::string(5'000'000, 'x')));
  prepare();
  EXPECT_EQ(documents(), (Texts{text, text + "tail", "json", std::string(5'000'000, 'x')}));
}

TEST_F(PrepareTest, TheDescriptionMatchesTheFilesAndSurvivesItsRoundTrip) {
  input("a.txt", "one\n\nfour five\n\nx");
  options_.split = DocumentSplit::blank_lines;
  const DatasetInfo info = prepare();
  const IndexedDataset data(prefix());
  EXPECT_EQ(load_dataset_info(data), info);
  EXPECT_EQ(info.maximum_id, 256);
  EXPECT_EQ(info.document_lengths, (std::vector<LengthBin>{{2, 3, 1, 2}, {4, 7, 1, 4}, {8, 15, 1, 10}}));
  EXPECT_EQ(info.bin_digest, digest_of(read_file(bin_path(prefix()))));
  EXPECT_EQ(info.idx_digest, digest_of(read_file(idx_path(prefix()))));
  EXPECT_TRUE(verify_dataset(prefix()).passed());
  EXPECT_EQ(inspect_dataset(prefix()).document_lengths, info.document_lengths);
  EXPECT_NE(dataset_summary_to_json(inspect_dataset(prefix())).find("\"documents\": 3"), std::string::npos);
}

TEST_F(PrepareTest, VerifyFindsEveryFlippedByte) {
  input("a.txt", "some text");
  prepare();
  for (const auto& path : {bin_path(prefix()), idx_path(prefix())}) {
    const std::string sound = read_file(path);
    for (size_t i = 0; i < sound.size(); ++i) {
      std::string damaged = sound;
      damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
      std::ofstream(path, std::ios::binary) << damaged;
      const DatasetVerdict verdict = verify_dataset(prefix());
      ASSERT_FALSE(verdict.passed()) << path << " byte " << i;
      EXPECT_NE(verdict.problems.front().find(prefix().string()), std::string::npos) << verdict.problems.front();
    }
    std::ofstream(path, std::ios::binary) << sound;
  }
  EXPECT_TRUE(verify_dataset(prefix()).passed());
  std::filesystem::remove(bin_path(prefix()));
  EXPECT_THROW(verify_dataset(prefix()), Error);
}

TEST_F(PrepareTest, ADescriptionOfOtherFilesIsRefused) {
  input("a.txt", "some text");
  prepare();
  const std::string old = read_file(dataset_info_path(prefix()));
  options_.inputs.clear();
  input("b.txt", "another text");
  prepare();
  std::ofstream(dataset_info_path(prefix())) << old;
  EXPECT_THROW(load_dataset_info(IndexedDataset(prefix())), Error);
  EXPECT_FALSE(verify_dataset(prefix()).passed());
}

TEST_F(PrepareTest, VocabularyIsCheckedByDescriptionOrByReading) {
  input("a.txt", "abc");
  prepare();
  const IndexedDataset data(prefix());
  check_vocabulary(data, 257);
  EXPECT_THROW(check_vocabulary(data, 256), Error);
  std::filesystem::remove(dataset_info_path(prefix()));
  check_vocabulary(data, 257);
  EXPECT_THROW(check_vocabulary(data, 256), Error);
}

TEST_F(PrepareTest, IdentityTellsDatasetsApart) {
  input("a.txt", "abc");
  prepare();
  const std::string first = dataset_identity(IndexedDataset(prefix()));
  EXPECT_EQ(dataset_identity(IndexedDataset(prefix())), first);
  options_.inputs.clear();
  input("a.txt", "abd");
  prepare();
  EXPECT_NE(dataset_identity(IndexedDataset(prefix())), first);
}

TEST_F(PrepareTest, RefusalsNameThingAndMendAndLeaveNothing) {
  EXPECT_NE(refusal().find("no input file"), std::string::npos);
  input("empty.txt", "");
  EXPECT_NE(refusal().find("holds no text"), std::string::npos);
  options_.tokenizer = "tokenizer.json";
  EXPECT_NE(refusal().find("no such file"), std::string::npos);
  options_.tokenizer = "bytes";
  const auto bad = input("bad.jsonl", "{\"text\":\"a\"}\n{\"txt\":\"b\"}\n");
  EXPECT_NE(refusal().find("bad.jsonl: line 2"), std::string::npos);
  std::ofstream(bad) << "{\"text\":7}";
  EXPECT_NE(refusal().find("line 1"), std::string::npos);
  options_.inputs = {folder_.path() / "absent"};
  EXPECT_NE(refusal().find("absent"), std::string::npos);
}

TEST_F(PrepareTest, TruncatedOrDamagedCompressionIsRefused) {
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += std::to_string(i) + ",";
  for (const std::string& whole : {gzip(text), zstd(text)}) {
    options_.inputs.clear();
    input("a", whole.substr(0, whole.size() - 5));
    EXPECT_NE(refusal().find("ends inside"), std::string::npos);
    options_.inputs.clear();
    std::string damaged = whole;
    for (size_t i = damaged.size() / 2; i < damaged.size() / 2 + 40; ++i) damaged[i] = static_cast<char>(~damaged[i]);
    input("a", damaged);
    EXPECT_NE(refusal(), "");
  }
}

TEST_F(PrepareTest, AFullDiskLeavesNoNewFilesAndTheOldDatasetIntact) {
  input("old.txt", "old");
  prepare();
  input("a.txt", std::string(3'000'000, 'x'));
  std::signal(SIGXFSZ, SIG_IGN);  // the write then fails with EFBIG, as it fails with ENOSPC on a full disk
  rlimit old{};
  ::getrlimit(RLIMIT_FSIZE, &old);
  const rlimit small{1'000'000, old.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  try {
    prepare();
    ADD_FAILURE() << "the disk was full";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::environment_failed);
    EXPECT_NE(std::string(error.what()).find("free space"), std::string::npos) << error.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_EQ(documents(), Texts{"old"});
  EXPECT_TRUE(verify_dataset(prefix()).passed());
  const std::filesystem::directory_iterator files(prefix().parent_path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 3);
}

TEST(ByteTokenizer, DecodesWhatItEncodes) {
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  EXPECT_EQ(decode_bytes(encode_bytes(all)), all);
  EXPECT_EQ(decode_bytes(std::vector<int32_t>{65, 256, -1, 66}), "AB");
}

/// All bytes and the words "th" and "the", as a tokenizer.json.
std::string small_tokenizer() {
  std::string vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string character(byte_character(static_cast<unsigned char>(byte)));
    const std::string escape = character == "\"" || character == "\\" ? "\\" : "";
    vocabulary += "\"" + escape + character + "\": " + std::to_string(byte) + ", ";
  }
  return R"({"added_tokens": [{"id": 258, "content": "<end>", "special": true}],
             "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false}, "decoder": {"type": "ByteLevel"},
             "model": {"type": "BPE", "merges": ["t h", "th e"], "vocab": {)" +
         vocabulary + R"("th": 256, "the": 257}}})";
}

class PrepareWithTokenizer : public PrepareTest {
 protected:
  void SetUp() override {
    options_.tokenizer = (folder_.path() / "tokenizer.json").string();
    std::ofstream(options_.tokenizer) << small_tokenizer();
  }
  std::vector<int32_t> tokens() const {
    const IndexedDataset data(prefix());
    std::vector<int32_t> ids(static_cast<size_t>(data.tokens()));
    data.read(0, ids);
    return ids;
  }
};

TEST_F(PrepareWithTokenizer, DocumentsAreTokensAndAnEnd) {
  input("a.jsonl", "{\"text\": \"the th\"}\n{\"text\": \"\"}\n{\"prompt\": \"t\", \"completion\": \"he\"}\n");
  const DatasetInfo info = prepare();
  EXPECT_EQ(tokens(), (std::vector<int32_t>{257, ' ', 256, 258, 't', 'h', 'e', 258}));  // prompts are apart
  EXPECT_EQ(info.tokenizer, "byte-level-bpe");
  EXPECT_EQ(info.tokenizer_name, "tokenizer.json");
  EXPECT_EQ(info.tokenizer_digest, digest_of(small_tokenizer()));
  EXPECT_EQ(info.vocabulary, 259);
  EXPECT_EQ(info.end_of_document, 258);
  EXPECT_EQ(info.documents, 2);
  EXPECT_EQ(info.mask.value().counted_tokens, 7);
  EXPECT_EQ(read_file(tokenizer_path(prefix())), small_tokenizer());
  EXPECT_EQ(dataset_info_from_json(dataset_info_to_json(info), "test"), info);
  EXPECT_TRUE(verify_dataset(prefix()).passed());
  std::ofstream(tokenizer_path(prefix()), std::ios::app) << " ";
  EXPECT_FALSE(verify_dataset(prefix()).passed());
  options_.tokenizer = "bytes";  // the next dataset of that name takes the copy away
  prepare();
  EXPECT_FALSE(std::filesystem::exists(tokenizer_path(prefix())));
}

// Long documents are encoded in pieces, on all threads, while others wait: nothing of it may show.
TEST_F(PrepareWithTokenizer, LongAndShortDocumentsGiveTheIdsOfOneEncoder) {
  std::string text;
  std::vector<int32_t> expected;
  const Tokenizer tokenizer = load_tokenizer(options_.tokenizer);
  TokenEncoder encoder(tokenizer);
  for (size_t document = 0; document < 60; ++document) {
    std::string words;
    const size_t bytes = document == 7 ? size_t{9} << 20 : document % 10 == 3 ? size_t{300} << 10 : 10 + document;
    while (words.size() < bytes) {
      words += words.size() % 3 == 0 ? "the th " : "x\nthe.";
      if (document == 13) words.back() = '.';  // no place to cut
    }
    if (document == 13) std::replace(words.begin(), words.end(), ' ', '.');
    encoder.encode(words, expected);
    expected.push_back(258);
    text += words + "\n\n";
  }
  input("a.txt", text);
  options_.split = DocumentSplit::blank_lines;
  EXPECT_EQ(prepare().documents, 60);
  EXPECT_EQ(tokens(), expected);
}

TEST_F(PrepareWithTokenizer, RefusalsNameTheTokenizerAndLeaveNothing) {
  input("a.txt", "the text");
  options_.end_of_document = "<none>";
  EXPECT_NE(refusal().find("<none>"), std::string::npos);
  options_.end_of_document = "";
  std::ofstream(options_.tokenizer) << "{}";
  EXPECT_NE(refusal().find("tokenizer.json: field 'model'"), std::string::npos);
  options_.tokenizer = "bytes";
  options_.end_of_document = "7";
  EXPECT_NE(refusal().find("--end-of-document"), std::string::npos);
}

}  // namespace
}  // namespace foresail
