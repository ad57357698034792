#include "runtime/data/indexed_dataset.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "core/file.h"
#include "tests/checkpoint/temporary_folder.h"

namespace foresail {
namespace {

std::string little_endian(uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  return text;
}

// An index composed field by field from the format's table.
struct HandIndex {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  uint64_t version = 1;
  int type = 8;
  std::vector<uint64_t> lengths = {3, 0, 2}, offsets = {0, 6, 6}, documents = {0, 1, 3};
  std::string tail;

  std::string bytes() const {
    std::string text = magic + little_endian(version, 8) + little_endian(static_cast<uint64_t>(type), 1) +
                       little_endian(lengths.size(), 8) + little_endian(documents.size(), 8);
    for (const uint64_t length : lengths) text += little_endian(length, 4);
    for (const uint64_t offset : offsets) text += little_endian(offset, 8);
    for (const uint64_t document : documents) text += little_endian(document, 8);
    return text + tail;
  }
};

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

class IndexedDatasetTest : public ::testing::Test {
 protected:
  std::filesystem::path prefix() const { return folder_.path() / "d"; }
  void write(const HandIndex& index, const std::string& bin) const {
    write_text(idx_path(prefix()), index.bytes());
    write_text(bin_path(prefix()), bin);
  }
  std::string refusal() const {
    try {
      IndexedDataset data(prefix());
    } catch (const Error& error) {
      EXPECT_EQ(error.exit(), Exit::bad_input);
      return error.what();
    }
    return "";
  }
  TemporaryFolder folder_;
  const std::string five_u16_ =
      little_endian(7, 2) + little_endian(8, 2) + little_endian(65535, 2) + little_endian(1, 2) + little_endian(2, 2);
};

TEST_F(IndexedDatasetTest, ReadsAHandMadeIndexWithUnalignedArrays) {
  write(HandIndex{}, five_u16_);
  const IndexedDataset data(prefix());
  EXPECT_EQ(data.sequences(), 3);
  EXPECT_EQ(data.documents(), 2);
  EXPECT_EQ(data.tokens(), 5);
  EXPECT_EQ(data.document_begin(1), 3);
  EXPECT_EQ(data.document_begin(2), 5);
  std::vector<int32_t> tokens(4);
  data.read(1, tokens);
  EXPECT_EQ(tokens, (std::vector<int32_t>{8, 65535, 1, 2}));
}

TEST_F(IndexedDatasetTest, AcceptsTheMultimodalModeBytes) {
  HandIndex index;
  index.tail = std::string(3, '\1');
  write(index, five_u16_);
  EXPECT_EQ(refusal(), "");
}

TEST_F(IndexedDatasetTest, WriterProducesExactlyTheFormatsBytes) {
  IndexedDatasetWriter writer(prefix(), TokenType::u16);
  writer.append(std::vector<int32_t>{7, 8});
  writer.append(std::vector<int32_t>{65535});
  writer.end_document();
  writer.append(std::vector<int32_t>{1, 2});
  writer.end_document();
  writer.finish();
  HandIndex expected;
  expected.lengths = {3, 2};
  expected.offsets = {0, 6};
  expected.documents = {0, 1, 2};
  const std::string idx = read_file(idx_path(prefix()).string() + ".tmp");
  EXPECT_EQ(idx, expected.bytes());
  EXPECT_EQ(std::ssize(idx), writer.idx_bytes());
  EXPECT_EQ(read_file(bin_path(prefix()).string() + ".tmp"), five_u16_);
  EXPECT_EQ(writer.bin_digest(), digest_of(five_u16_));
  EXPECT_EQ(writer.idx_digest(), digest_of(expected.bytes()));
}

TEST_F(IndexedDatasetTest, WriterStreamsMoreDocumentsThanItBuffers) {
  constexpr int64_t kDocuments = 150'000;
  {
    IndexedDatasetWriter writer(prefix(), TokenType::i32);
    for (int64_t d = 0; d < kDocuments; ++d) {
      std::vector<int32_t> tokens(static_cast<size_t>(d % 5), static_cast<int32_t>(1'000'000 + d));
      writer.append(tokens);
      writer.end_document();
    }
    writer.finish();
  }
  std::filesystem::rename(idx_path(prefix()).string() + ".tmp", idx_path(prefix()));
  std::filesystem::rename(bin_path(prefix()).string() + ".tmp", bin_path(prefix()));
  const IndexedDataset data(prefix());
  EXPECT_EQ(data.documents(), kDocuments);
  EXPECT_EQ(data.tokens(), kDocuments * 2);
  int32_t token = 0;
  data.read(data.document_begin(140'001), std::span(&token, 1));
  EXPECT_EQ(token, 1'140'001);
}

TEST_F(IndexedDatasetTest, ChoosesTheTypeByVocabularyAsTheFormatsOwnWriter) {
  EXPECT_EQ(token_type_for(65499), TokenType::u16);
  EXPECT_EQ(token_type_for(65500), TokenType::i32);
}

TEST_F(IndexedDatasetTest, ReadsEveryIntegerTypeAndRefusesNegativeIds) {
  struct Case {
    int type, bytes;
    uint64_t value;
    bool valid;
  };
  for (const Case& c : {Case{1, 1, 255, true}, Case{2, 1, 127, true}, Case{2, 1, 255, false}, Case{3, 2, 32767, true},
                        Case{3, 2, 32768, false}, Case{4, 4, 2147483647, true}, Case{4, 4, 2147483648, false},
                        Case{5, 8, 2147483647, true}, Case{5, 8, 2147483648, false}, Case{8, 2, 65535, true}}) {
    HandIndex index;
    index.type = c.type;
    index.lengths = {1};
    index.offsets = {0};
    index.documents = {0, 1};
    write(index, little_endian(c.value, c.bytes));
    const IndexedDataset data(prefix());
    int32_t token = 0;
    if (c.valid) {
      data.read(0, std::span(&token, 1));
      EXPECT_EQ(static_cast<uint64_t>(token), c.value);
    } else {
      EXPECT_THROW(data.read(0, std::span(&token, 1)), Error) << c.type << " " << c.value;
    }
  }
}

TEST_F(IndexedDatasetTest, RefusesEveryBrokenFieldNamingTheFile) {
  struct Case {
    const char* said;
    std::function<void(HandIndex&)> damage;
  };
  const Case cases[] = {
      {"MMIDIDX", [](HandIndex& i) { i.magic[0] = 'X'; }},
      {"version 2", [](HandIndex& i) { i.version = 2; }},
      {"type code 6", [](HandIndex& i) { i.type = 6; }},
      {"type code 0", [](HandIndex& i) { i.type = 0; }},
      {"do not match", [](HandIndex& i) { i.tail = "x"; }},
      {"negative length", [](HandIndex& i) { i.lengths[0] = 0xffffffff; }},
      {"placed at byte 8", [](HandIndex& i) { i.offsets[1] = 8; }},
      {"its index describes more", [](HandIndex& i) { i.lengths[2] = 3; }},
      {"its index describes 8", [](HandIndex& i) { i.lengths[2] = 1; }},
      {"out of order",
       [](HandIndex& i) {
         i.documents = {1, 1, 3};
       }},
      {"out of order",
       [](HandIndex& i) {
         i.documents = {0, 2, 1};
       }},
      {"out of order",
       [](HandIndex& i) {
         i.documents = {0, 4, 3};
       }},
      {"last document boundary",
       [](HandIndex& i) {
         i.documents = {0, 1, 2};
       }},
      {"no document boundaries", [](HandIndex& i) { i.documents = {}; }},
  };
  for (const Case& c : cases) {
    HandIndex index;
    c.damage(index);
    write(index, five_u16_);
    EXPECT_NE(refusal().find(c.said), std::string::npos) << c.said << " | " << refusal();
    EXPECT_NE(refusal().find(prefix().string()), std::string::npos);
  }
}

TEST_F(IndexedDatasetTest, RefusesCountsThatWouldOverflow) {
  std::string bytes = HandIndex{}.bytes();
  bytes.replace(18, 8, little_endian(0x1555555555555556, 8));  // x 12 wraps around 2^64
  write_text(idx_path(prefix()), bytes);
  write_text(bin_path(prefix()), five_u16_);
  EXPECT_NE(refusal().find("do not match"), std::string::npos);
}

TEST_F(IndexedDatasetTest, RefusesMissingAndEmptyFiles) {
  EXPECT_NE(refusal().find("cannot open"), std::string::npos);
  HandIndex index;
  index.lengths = index.offsets = {};
  index.documents = {0};
  write(index, "");
  EXPECT_NE(refusal().find("holds no tokens"), std::string::npos);
  write_text(idx_path(prefix()), "");
  EXPECT_NE(refusal().find("shorter than its header"), std::string::npos);
}

}  // namespace
}  // namespace foresail
