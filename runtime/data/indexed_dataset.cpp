#include "runtime/data/indexed_dataset.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "core/error.h"

namespace foresail {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and read as it lies in memory");

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr int64_t kHeaderBytes = 34;
constexpr const char* kMend = "the dataset is damaged or incomplete: prepare or copy it again";

struct TypeRow {
  TokenType type;
  int64_t bytes;
  std::string_view name;
};

constexpr std::array kTypes = {
    TypeRow{TokenType::u8, 1, "u8"},   TypeRow{TokenType::i8, 1, "i8"},   TypeRow{TokenType::i16, 2, "i16"},
    TypeRow{TokenType::i32, 4, "i32"}, TypeRow{TokenType::i64, 8, "i64"}, TypeRow{TokenType::u16, 2, "u16"},
};

const TypeRow* row_of(uint8_t code) {
  const auto found = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](const TypeRow& row) { return static_cast<uint8_t>(row.type) == code; });
  return found == kTypes.end() ? nullptr : &*found;
}

// The arrays of the index are in general not aligned.
template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Widens tokens of type T; returns the position of the first one that is no id, or -1.
template <typename T>
int64_t widen(const std::byte* from, std::span<int32_t> out) {
  int64_t bad = -1;
  for (int64_t i = 0; i < std::ssize(out); ++i) {
    const T value = load<T>(from + i * static_cast<int64_t>(sizeof(T)));
    if constexpr (std::numeric_limits<T>::is_signed) {
      if (value < 0 && bad < 0) bad = i;
    }
    if constexpr (sizeof(T) > sizeof(int32_t)) {
      if (value > std::numeric_limits<int32_t>::max() && bad < 0) bad = i;
    }
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): the token type i8 holds numbers, not characters
    out[static_cast<size_t>(i)] = static_cast<int32_t>(value);
  }
  return bad;
}

int64_t widen(TokenType type, const std::byte* from, std::span<int32_t> out) {
  switch (type) {
    case TokenType::u8: return widen<uint8_t>(from, out);
    case TokenType::i8: return widen<int8_t>(from, out);
    case TokenType::i16: return widen<int16_t>(from, out);
    case TokenType::i32: return widen<int32_t>(from, out);
    case TokenType::i64: return widen<int64_t>(from, out);
    case TokenType::u16: return widen<uint16_t>(from, out);
  }
  return 0;
}

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& cause) {
  throw_bad_input(path.string(), cause, kMend);
}

}  // namespace

int64_t size_of(TokenType type) {
  const TypeRow* const row = row_of(static_cast<uint8_t>(type));
  ensure(row != nullptr, "every TokenType is in the table");
  return row->bytes;
}

std::string_view name_of(TokenType type) {
  const TypeRow* const row = row_of(static_cast<uint8_t>(type));
  ensure(row != nullptr, "every TokenType is in the table");
  return row->name;
}

TokenType token_type_for(int64_t vocabulary) {
  constexpr int64_t kFirstVocabularyTooLargeForU16 = 65500;
  return vocabulary < kFirstVocabularyTooLargeForU16 ? TokenType::u16 : TokenType::i32;
}

std::filesystem::path bin_path(const std::filesystem::path& prefix) { return prefix.string() + ".bin"; }
std::filesystem::path idx_path(const std::filesystem::path& prefix) { return prefix.string() + ".idx"; }

IndexedDataset::IndexedDataset(const std::filesystem::path& prefix)
    : prefix_(prefix), bin_(bin_path(prefix)), idx_(idx_path(prefix)) {
  read_header();
  check_sequences();
  check_documents();
}

void IndexedDataset::read_header() {
  const std::span<const std::byte> index = idx_.bytes();
  const int64_t bytes = std::ssize(index);
  if (bytes < kHeaderBytes) fail(idx_.path(), "is shorter than its header of 34 bytes");
  if (std::memcmp(index.data(), kMagic, sizeof kMagic) != 0) fail(idx_.path(), "does not start with MMIDIDX");
  const uint64_t version = load<uint64_t>(index.data() + 9);
  if (version != 1) fail(idx_.path(), "has version " + std::to_string(version) + ", expected 1");
  const uint8_t code = load<uint8_t>(index.data() + 17);
  const TypeRow* const row = row_of(code);
  if (row == nullptr) fail(idx_.path(), "has token type code " + std::to_string(code) + ", which is no integer type");
  type_ = row->type;
  const uint64_t sequences = load<uint64_t>(index.data() + 18);
  const uint64_t boundaries = load<uint64_t>(index.data() + 26);
  // The bounds keep the products below from overflowing.
  const auto limit = static_cast<uint64_t>(bytes);
  const bool plausible = sequences <= limit / 12 && boundaries <= limit / 8;
  const uint64_t expected = plausible ? kHeaderBytes + 12 * sequences + 8 * boundaries : 0;
  if (!plausible ||
      (limit != expected && limit != expected + sequences)) {  // the longer form carries a mode per sequence
    fail(idx_.path(), "has " + std::to_string(bytes) + " bytes, which do not match " + std::to_string(sequences) +
                          " sequences and " + std::to_string(boundaries) + " document boundaries");
  }
  if (boundaries < 1) fail(idx_.path(), "has no document boundaries");
  sequences_ = static_cast<int64_t>(sequences);
  documents_ = static_cast<int64_t>(boundaries) - 1;
}

void IndexedDataset::check_sequences() {
  const int64_t bin_bytes = std::ssize(bin_.bytes());
  int64_t expected = 0;
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t length = length_at(i);
    if (length < 0) fail(idx_.path(), "sequence " + std::to_string(i) + " has a negative length");
    const int64_t offset = offset_at(i);
    if (offset != expected) {
      fail(idx_.path(), "sequence " + std::to_string(i) + " is placed at byte " + std::to_string(offset) +
                            ", expected " + std::to_string(expected));
    }
    expected += length * size_of(type_);  // below 2^34 each, at most 2^63 / 12 of them only in files beyond any disk
    if (expected > bin_bytes) break;
  }
  if (expected != bin_bytes) {
    fail(bin_.path(), "has " + std::to_string(bin_bytes) + " bytes, its index describes " +
                          (expected > bin_bytes ? "more" : std::to_string(expected)));
  }
  if (bin_bytes == 0) fail(bin_.path(), "holds no tokens");
  tokens_ = bin_bytes / size_of(type_);
}

void IndexedDataset::check_documents() const {
  int64_t previous = 0;
  for (int64_t d = 0; d <= documents_; ++d) {
    const int64_t sequence = document_at(d);
    if ((d == 0 && sequence != 0) || sequence < previous || sequence > sequences_) {
      fail(idx_.path(),
           "document " + std::to_string(d) + " starts at sequence " + std::to_string(sequence) + ", out of order");
    }
    previous = sequence;
  }
  if (previous != sequences_) fail(idx_.path(), "the last document boundary is not the number of sequences");
}

int64_t IndexedDataset::length_at(int64_t sequence) const {
  return load<int32_t>(idx_.bytes().data() + kHeaderBytes + 4 * sequence);
}

int64_t IndexedDataset::offset_at(int64_t sequence) const {
  return load<int64_t>(idx_.bytes().data() + kHeaderBytes + 4 * sequences_ + 8 * sequence);
}

int64_t IndexedDataset::document_at(int64_t index) const {
  return load<int64_t>(idx_.bytes().data() + kHeaderBytes + 12 * sequences_ + 8 * index);
}

int64_t IndexedDataset::document_begin(int64_t document) const {
  ensure(document >= 0 && document <= documents_, "a document's number is in range");
  const int64_t sequence = document_at(document);
  return sequence == sequences_ ? tokens_ : offset_at(sequence) / size_of(type_);
}

void IndexedDataset::read(int64_t first, std::span<int32_t> out) const {
  ensure(first >= 0 && first <= tokens_ && std::ssize(out) <= tokens_ - first, "tokens are read inside the dataset");
  const int64_t bad = widen(type_, bin_.bytes().data() + first * size_of(type_), out);
  if (bad >= 0) fail(bin_.path(), "token " + std::to_string(first + bad) + " is no id (negative or above 2^31 - 1)");
}

}  // namespace foresail
