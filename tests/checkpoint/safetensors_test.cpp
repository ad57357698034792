#include "runtime/checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "core/error.h"
#include "core/file.h"
#include "tests/checkpoint/temporary_folder.h"

namespace foresail {
namespace {

std::span<const std::byte> bytes_of(const std::vector<float>& values) { return std::as_bytes(std::span(values)); }

// A safetensors file made by hand: header text as given, then `data_bytes` bytes counting up.
std::filesystem::path raw_file(const TemporaryFolder& folder, const std::string& header, int64_t data_bytes) {
  const auto path = folder.path() / "raw.safetensors";
  const uint64_t length = header.size();
  std::string content(reinterpret_cast<const char*>(&length), sizeof length);
  content += header;
  for (int64_t i = 0; i < data_bytes; ++i) content += static_cast<char>(i);
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

std::string refusal(const std::filesystem::path& path) {
  try {
    SafetensorsFile file(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    return error.what();
  }
  return "";
}

TEST(Safetensors, RoundTripKeepsEveryByteShapeAndMetadata) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "m.safetensors";
  const std::vector<float> matrix = {1, 2, 3, 4, 5, 6};
  const std::vector<double> scalar = {0.5};
  const std::vector<uint16_t> halves = {1, 2, 3};
  const TensorInMemory tensors[] = {
      {"halves", DType::f16, {3}, std::as_bytes(std::span(halves))},
      {"matrix", DType::f32, {2, 3}, bytes_of(matrix)},
      {"empty", DType::f32, {0, 7}, {}},
      {"scalar", DType::f64, {}, std::as_bytes(std::span(scalar))},
  };
  write_safetensors(path, tensors, {{"format", "pt"}});

  const SafetensorsFile file(path);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.tensors()[0].name, "scalar");  // descending element size, then name
  EXPECT_EQ(file.tensors()[3].name, "halves");
  for (const TensorInMemory& tensor : tensors) {
    const TensorEntry& entry = file.at(tensor.name);
    EXPECT_EQ(entry.shape, tensor.shape);
    EXPECT_EQ(dtype_from_safetensors(entry.type), tensor.dtype);
    std::vector<std::byte> read(static_cast<size_t>(entry.bytes));
    file.read(entry, 0, read);
    EXPECT_TRUE(std::equal(read.begin(), read.end(), tensor.data.begin(), tensor.data.end())) << tensor.name;
  }
  float third = 0;
  file.read(file.at("matrix"), 8, std::as_writable_bytes(std::span(&third, 1)));
  EXPECT_EQ(third, 3);
  EXPECT_EQ(file.find("absent"), nullptr);
  EXPECT_THROW(file.at("absent"), Error);
}

TEST(Safetensors, DataStartsAtAMultipleOf64BehindSpaces) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "m.safetensors";
  const std::vector<float> values(16);
  const TensorInMemory tensor{"t", DType::f32, {16}, bytes_of(values)};
  write_safetensors(path, std::span(&tensor, 1));
  EXPECT_EQ(SafetensorsFile(path).at("t").offset % 64, 0);
  const std::string content = read_file(path);
  EXPECT_EQ(content[8], '{');
  EXPECT_FALSE(std::filesystem::exists(path.string() + ".tmp"));
}

TEST(Safetensors, PiecesMayBeWrittenInAnyOrderButNoneMayBeMissing) {
  const TemporaryFolder folder;
  const std::vector<float> values = {1, 2, 3, 4};
  const TensorToWrite tensors[] = {{"a", "F32", {4}}, {"b", "F32", {2}}};
  SafetensorsWriter writer(folder.path() / "w.safetensors", tensors);
  writer.write(1, 0, bytes_of(values).first(8));
  writer.write(0, 8, bytes_of(values).subspan(8));
  EXPECT_THROW(writer.finish(), Error);
  writer.write(0, 0, bytes_of(values).first(8));
  writer.finish();
  const SafetensorsFile file(folder.path() / "w.safetensors");
  std::vector<float> read(4);
  file.read(file.at("a"), 0, std::as_writable_bytes(std::span(read)));
  EXPECT_EQ(read, values);
}

TEST(Safetensors, WriterRefusesTwoTensorsOfOneNameBeforeCreatingAFile) {
  const TemporaryFolder folder;
  const TensorToWrite tensors[] = {{"a", "F32", {4}}, {"a", "F32", {4}}};
  EXPECT_THROW(SafetensorsWriter(folder.path() / "w", tensors), Error);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "w"));
}

TEST(Safetensors, AcceptsPaddedHeadersEmptyFilesAndSubByteTypes) {
  const TemporaryFolder folder;
  EXPECT_EQ(refusal(raw_file(folder, "{}   ", 0)), "");
  EXPECT_EQ(refusal(raw_file(folder, R"({"q":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3]}})", 3)), "");
  EXPECT_EQ(refusal(raw_file(folder, R"({"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},
                                         "a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
                                         "z":{"dtype":"F32","shape":[0],"data_offsets":[3,3]}})",
                             3)),
            "");
}

TEST(Safetensors, RefusesEveryBrokenRuleNamingFileAndTensor) {
  const TemporaryFolder folder;
  struct Case {
    const char* header;
    int64_t data_bytes;
    const char* said;
  };
  const Case cases[] = {
      {R"( {"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "does not start with '{'"},
      {R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}x)", 1, "does not end with '}'"},
      {R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"t":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
       2, "t"},
      {R"({"t":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4, "unknown dtype"},
      {R"({"t":{"dtype":7,"shape":[1],"data_offsets":[0,4]}})", 4, "dtype that is no string"},
      {R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,3]}})", 3, "do not match its shape"},
      {R"({"t":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "no count"},
      {R"({"t":{"dtype":"F32","shape":[1.0],"data_offsets":[0,4]}})", 4, "no count"},
      {R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}})", 4, "outside the file"},
      {R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 2, "outside the file"},
      {R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "outside the file"},
      {R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5, "its header describes 4"},
      {R"({"t":{"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,4]}})", 4, "absurd shape"},
      {R"({"t":{"dtype":"F4","shape":[1],"data_offsets":[0,1]}})", 1, "does not end on a byte"},
      {R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"u":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "overlaps"},
      {R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"u":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
       3, "hole"},
      {R"({"__metadata__":{"a":1}})", 0, "not a string"},
      {R"({"t":[]})", 0, "not described by an object"},
      {R"({"t":{"shape":[1],"data_offsets":[0,1]}})", 1, "lacks 'dtype'"},
  };
  for (const Case& broken : cases) {
    const auto path = raw_file(folder, broken.header, broken.data_bytes);
    const std::string message = refusal(path);
    EXPECT_NE(message.find(broken.said), std::string::npos) << broken.header << "\n" << message;
    EXPECT_NE(message.find(path.string()), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST(Safetensors, RefusesShortFilesAndHeaderLengthsBeyondFileOrLimit) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "short";
  std::ofstream(path) << "1234";
  EXPECT_NE(refusal(path), "");
  std::ofstream(path) << std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10);
  EXPECT_NE(refusal(path).find("header length"), std::string::npos);
  EXPECT_NE(refusal(folder.path() / "absent"), "");
  EXPECT_NE(refusal(folder.path()).find("regular file"), std::string::npos);
}

// What the format's own library writes (its tests state these bytes): headers without padding, and with spaces.
TEST(Safetensors, ReadsTheBytesThatTheLibraryWrites) {
  const TemporaryFolder folder;
  const SafetensorsFile plain(raw_file(folder, R"({"test":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}})", 16));
  EXPECT_EQ(plain.at("test").offset, 8 + 0x3C);
  const SafetensorsFile padded(raw_file(
      folder,
      R"({"__metadata__":{"framework":"pt"},"test1":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}}       )", 16));
  EXPECT_EQ(padded.metadata().at("framework"), "pt");
  EXPECT_EQ(padded.at("test1").offset, 8 + 0x66);
}

}  // namespace
}  // namespace foresail
