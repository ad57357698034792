#include "runtime/data/loss_mask.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/digest.h"
#include "core/error.h"

namespace foresail {
namespace {

constexpr char kMagic[8] = {'F', 'S', 'M', 'A', 'S', 'K', '\0', '\1'};
constexpr int64_t kHeaderBytes = 16;
constexpr int64_t kBits = 8;  // of a byte
constexpr size_t kBufferBytes = size_t{1} << 18;

int64_t file_bytes_for(int64_t tokens) { return kHeaderBytes + (tokens + kBits - 1) / kBits; }

std::filesystem::path aside(const std::filesystem::path& prefix) { return mask_path(prefix).string() + ".tmp"; }

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& cause) {
  throw_bad_input(path.string(), cause, "prepare the dataset again, or copy it again with its mask");
}

/// The lowest `count` bits, 0 to 8.
uint8_t low_bits(int64_t count) { return static_cast<uint8_t>((1U << count) - 1U); }

}  // namespace

std::filesystem::path mask_path(const std::filesystem::path& prefix) { return prefix.string() + ".mask"; }

LossMask::LossMask(const std::filesystem::path& path, int64_t tokens) : file_(path), tokens_(tokens) {
  const std::span<const std::byte> all = file_.bytes();
  if (std::ssize(all) < kHeaderBytes) fail(path, "is shorter than its header of 16 bytes");
  if (std::memcmp(all.data(), kMagic, sizeof kMagic) != 0) fail(path, "is no loss mask of version 1");
  uint64_t stated = 0;
  std::memcpy(&stated, all.data() + sizeof kMagic, sizeof stated);
  if (stated != static_cast<uint64_t>(tokens)) {
    fail(path, "is for " + std::to_string(stated) + " tokens, the dataset has " + std::to_string(tokens));
  }
  if (std::ssize(all) != file_bytes_for(tokens)) {
    fail(path, "has " + std::to_string(all.size()) + " bytes, " + std::to_string(tokens) + " tokens need " +
                   std::to_string(file_bytes_for(tokens)));
  }
  const int64_t used = tokens % kBits;
  if (used != 0 && (std::to_integer<uint8_t>(all.back()) & ~low_bits(used)) != 0) {
    fail(path, "marks tokens beyond the last one");
  }
}

const std::byte* LossMask::bits() const { return file_.bytes().data() + kHeaderBytes; }

bool LossMask::counts(int64_t token) const {
  ensure(token >= 0 && token < tokens_, "a mask is read inside the dataset");
  return (std::to_integer<unsigned>(bits()[token / kBits]) >> (token % kBits) & 1U) != 0;
}

int64_t LossMask::counted(int64_t first, int64_t tokens) const {
  ensure(first >= 0 && tokens >= 0 && first <= tokens_ && tokens <= tokens_ - first,
         "a mask is read inside the dataset");
  int64_t count = 0, at = first;
  const int64_t end = first + tokens;
  for (; at < end && at % kBits != 0; ++at) count += counts(at) ? 1 : 0;
  constexpr int64_t kWordBits = 64;
  for (; end - at >= kWordBits; at += kWordBits) {
    uint64_t word = 0;
    std::memcpy(&word, bits() + at / kBits, sizeof word);
    count += std::popcount(word);
  }
  for (; at < end; ++at) count += counts(at) ? 1 : 0;
  return count;
}

void LossMaskWriter::append(int64_t tokens, bool count) {
  if (!count && tokens > 0 && !needed()) {
    file_ = PosixFile::create(aside(prefix_));
    buffer_.reserve(kBufferBytes);
    const int64_t before = tokens_;  // all of them count
    tokens_ = 0;
    put(before, true);
  }
  if (needed()) {
    put(tokens, count);
  } else {
    tokens_ += tokens;
  }
  if (count) counted_ += tokens;
}

void LossMaskWriter::put(int64_t tokens, bool count) {
  while (tokens > 0) {
    const int64_t used = tokens_ % kBits, taken = std::min(tokens, kBits - used);
    if (count) open_byte_ = static_cast<uint8_t>(open_byte_ | low_bits(taken) << used);
    tokens_ += taken;
    tokens -= taken;
    if (tokens_ % kBits != 0) continue;
    buffer_.push_back(std::byte{open_byte_});
    open_byte_ = 0;
    if (buffer_.size() >= kBufferBytes) flush();
  }
}

// The bytes before those in the buffer are in the file.
void LossMaskWriter::flush() {
  const int64_t whole = tokens_ / kBits;
  file_->write_at(kHeaderBytes + whole - std::ssize(buffer_), buffer_);
  buffer_.clear();
}

int64_t LossMaskWriter::bytes() const { return file_bytes_for(tokens_); }

void LossMaskWriter::finish() {
  if (!needed()) return;
  flush();
  if (tokens_ % kBits != 0) file_->write_at(kHeaderBytes + tokens_ / kBits, std::as_bytes(std::span(&open_byte_, 1)));
  const auto stated = static_cast<uint64_t>(tokens_);
  file_->write_at(0, std::as_bytes(std::span(kMagic)));
  file_->write_at(sizeof kMagic, std::as_bytes(std::span(&stated, 1)));
  file_->sync();
  file_->close();
  digest_ = digest_of(MappedFile(aside(prefix_)).bytes());
}

}  // namespace foresail
