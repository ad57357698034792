#include <algorithm>
#include <cstring>
#include <limits>

#include "core/error.h"
#include "runtime/data/indexed_dataset.h"

namespace foresail {
namespace {

constexpr int64_t kHeaderBytes = 34;
constexpr size_t kTokenBufferBytes = size_t{1} << 20;
constexpr size_t kLengthsBuffered = size_t{1} << 16;

std::filesystem::path aside(const std::filesystem::path& path) { return path.string() + ".tmp"; }

template <typename T>
void put(std::vector<std::byte>& to, T value) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  to.insert(to.end(), bytes, bytes + sizeof value);
}

}  // namespace

IndexedDatasetWriter::IndexedDatasetWriter(const std::filesystem::path& prefix, TokenType type)
    : bin_(PosixFile::create(aside(bin_path(prefix)))), idx_(PosixFile::create(aside(idx_path(prefix)))), type_(type) {
  ensure(type == TokenType::u16 || type == TokenType::i32, "datasets are written as u16 or i32");
  buffer_.reserve(kTokenBufferBytes + sizeof(int32_t));
}

void IndexedDatasetWriter::append(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) {
    if (type_ == TokenType::u16) {
      ensure(token >= 0 && token <= std::numeric_limits<uint16_t>::max(), "a token fits the type it is written as");
      put(buffer_, static_cast<uint16_t>(token));
    } else {
      ensure(token >= 0, "a token is not negative");
      put(buffer_, token);
    }
    if (buffer_.size() >= kTokenBufferBytes) flush_tokens();
  }
  document_tokens_ += std::ssize(tokens);
  tokens_ += std::ssize(tokens);
}

void IndexedDatasetWriter::end_document() {
  if (document_tokens_ > std::numeric_limits<int32_t>::max()) {
    throw_bad_input("document " + std::to_string(documents_),
                    "has " + std::to_string(document_tokens_) + " tokens; the index holds lengths below 2^31",
                    "split it into several documents");
  }
  lengths_.push_back(static_cast<int32_t>(document_tokens_));
  document_tokens_ = 0;
  ++documents_;
  if (lengths_.size() >= kLengthsBuffered) flush_lengths();
}

int64_t IndexedDatasetWriter::idx_bytes() const { return kHeaderBytes + 12 * documents_ + 8 * (documents_ + 1); }

void IndexedDatasetWriter::flush_tokens() {
  bin_content_.update(buffer_);
  bin_.append(buffer_);
  buffer_.clear();
}

// Lengths go straight to their final place; header, offsets and documents follow when their number is known.
void IndexedDatasetWriter::flush_lengths() {
  idx_.write_at(kHeaderBytes + 4 * lengths_written_, std::as_bytes(std::span(lengths_)));
  lengths_written_ += std::ssize(lengths_);
  lengths_.clear();
}

void IndexedDatasetWriter::write_offsets() {
  const PosixFile written = PosixFile::open_to_read(idx_.path());
  std::vector<int32_t> lengths(kLengthsBuffered);
  std::vector<int64_t> offsets;
  int64_t offset = 0;
  for (int64_t first = 0; first < documents_; first += std::ssize(lengths)) {
    lengths.resize(static_cast<size_t>(std::min<int64_t>(kLengthsBuffered, documents_ - first)));
    written.read_at(kHeaderBytes + 4 * first, std::as_writable_bytes(std::span(lengths)));
    offsets.clear();
    for (const int32_t length : lengths) {
      offsets.push_back(offset);
      offset += length * size_of(type_);
    }
    idx_.write_at(kHeaderBytes + 4 * documents_ + 8 * first, std::as_bytes(std::span(offsets)));
  }
}

void IndexedDatasetWriter::write_documents() {
  std::vector<int64_t> boundaries;
  for (int64_t first = 0; first <= documents_; first += static_cast<int64_t>(kLengthsBuffered)) {
    const int64_t end = std::min<int64_t>(documents_ + 1, first + static_cast<int64_t>(kLengthsBuffered));
    boundaries.clear();
    for (int64_t d = first; d < end; ++d) boundaries.push_back(d);
    idx_.write_at(kHeaderBytes + 12 * documents_ + 8 * first, std::as_bytes(std::span(boundaries)));
  }
}

void IndexedDatasetWriter::finish() {
  ensure(document_tokens_ == 0, "the last document is ended before the dataset is finished");
  flush_tokens();
  flush_lengths();
  write_offsets();
  write_documents();
  std::vector<std::byte> header;
  for (const char c : std::string_view("MMIDIDX\0\0", 9)) put(header, c);
  put(header, uint64_t{1});
  put(header, *index_code_of(type_));
  put(header, static_cast<uint64_t>(documents_));
  put(header, static_cast<uint64_t>(documents_ + 1));
  idx_.write_at(0, header);
  bin_.sync();
  idx_.sync();
  const std::filesystem::path written = idx_.path();
  bin_.close();
  idx_.close();
  bin_digest_ = bin_content_.hex();
  idx_digest_ = digest_of(MappedFile(written).bytes());
}

}  // namespace foresail
