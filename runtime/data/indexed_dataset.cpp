#include "runtime/data/indexed_dataset.h"

#include <cstring>

#include "core/error.h"

namespace foresail {
namespace {

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr int64_t kHeaderBytes = 34;
constexpr const char* kMend = "the dataset is damaged or incomplete: prepare or copy it again";

// The arrays of the index are in general not aligned.
template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& cause) {
  throw_bad_input(path.string(), cause, kMend);
}

}  // namespace

std::filesystem::path bin_path(const std::filesystem::path& prefix) { return prefix.string() + ".bin"; }
std::filesystem::path idx_path(const std::filesystem::path& prefix) { return prefix.string() + ".idx"; }

IndexedDataset::IndexedDataset(const std::filesystem::path& prefix)
    : TokenDataset(prefix), bin_(bin_path(prefix)), idx_(idx_path(prefix)) {
  read_header();
  check_sequences();
  check_documents();
  std::error_code error;
  // A link to nothing is a mask that was lost, not none.
  if (std::filesystem::exists(std::filesystem::symlink_status(mask_path(prefix), error)))
    mask_.emplace(mask_path(prefix), tokens_);
}

void IndexedDataset::read_header() {
  const std::span<const std::byte> index = idx_.bytes();
  const int64_t bytes = std::ssize(index);
  if (bytes < kHeaderBytes) fail(idx_.path(), "is shorter than its header of 34 bytes");
  if (std::memcmp(index.data(), kMagic, sizeof kMagic) != 0) fail(idx_.path(), "does not start with MMIDIDX");
  const uint64_t version = load<uint64_t>(index.data() + 9);
  if (version != 1) fail(idx_.path(), "has version " + std::to_string(version) + ", expected 1");
  const uint8_t code = load<uint8_t>(index.data() + 17);
  const std::optional<TokenType> type = token_type_of_index_code(code);
  if (!type) fail(idx_.path(), "has token type code " + std::to_string(code) + ", which is no integer type");
  type_ = *type;
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
  const int64_t bad = widen_tokens(type_, bin_.bytes().data() + first * size_of(type_), out);
  if (bad >= 0) fail(bin_.path(), "token " + std::to_string(first + bad) + " is no id (negative or above 2^31 - 1)");
}

int64_t IndexedDataset::first_document_from(int64_t token) const {
  int64_t low = 0, high = documents_;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (document_begin(middle) < token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

int64_t IndexedDataset::next_document(int64_t token) const { return document_begin(first_document_from(token)); }

int64_t IndexedDataset::previous_document(int64_t token) const {
  ensure(token > 0, "no document begins before the first token");
  const int64_t document = first_document_from(token);
  return document == 0 ? 0 : document_begin(document - 1);
}

void IndexedDataset::each_document(const std::function<void(int64_t)>& visit) const {
  for (int64_t begin = 0, d = 1; d <= documents_; ++d) {
    const int64_t end = document_begin(d);
    visit(end - begin);
    begin = end;
  }
}

std::string IndexedDataset::place_of(int64_t token) const {
  return bin_.path().string() + ": token " + std::to_string(token);
}

}  // namespace foresail
