#include "runtime/data/shard_dataset.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/error.h"

namespace foresail {
namespace {

constexpr int64_t kHeaderBytes = 1024;  // 256 x i32

struct ShardFormat {
  int32_t magic, version;
  TokenType type;
  const char* tokenizer;
  int64_t vocabulary;
  int32_t end_of_text;  ///< begins every document; for Llama 3 it is <|begin_of_text|>, which the writers take for it
};

// dev/data/data_common.py and fineweb.py of karpathy/llm.c; the vocabularies are those of the tokenizers.
constexpr std::array kFormats = {
    ShardFormat{20240520, 1, TokenType::u16, "gpt2", 50257, 50256},
    ShardFormat{20240801, 7, TokenType::u32, "llama-3", 128256, 128000},
};

struct OtherFile {
  int32_t magic;
  const char* what;
};

constexpr std::array kOtherFiles = {
    OtherFile{20240522, "a multiple-choice evaluation"},
    OtherFile{20240326, "a model"},
    OtherFile{20240527, "a state of the optimizer"},
    OtherFile{20240328, "a tokenizer"},
};

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& cause) {
  throw_bad_input(path.string(), cause, "give token shards as llm.c's data scripts write them");
}

const ShardFormat* format_of_magic(int32_t magic) {
  const auto* const found =
      std::find_if(kFormats.begin(), kFormats.end(), [&](const ShardFormat& format) { return format.magic == magic; });
  return found == kFormats.end() ? nullptr : found;
}

struct ShardHeader {
  int32_t magic = 0, version = 0, tokens = 0;
};

ShardHeader header_of(std::span<const std::byte> bytes) {
  ShardHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  return header;
}

/// Checks everything that the header says against the file.
const ShardFormat& checked_format(const MappedFile& file) {
  const int64_t bytes = std::ssize(file.bytes());
  if (bytes < kHeaderBytes) fail(file.path(), "is shorter than the header of a token shard, 1024 bytes");
  const ShardHeader header = header_of(file.bytes());
  const ShardFormat* const format = format_of_magic(header.magic);
  if (format == nullptr) {
    for (const OtherFile& other : kOtherFiles) {
      if (header.magic == other.magic) fail(file.path(), std::string("is ") + other.what + " of llm.c, no token shard");
    }
    fail(file.path(),
         "is no token shard: it starts with " + std::to_string(header.magic) + ", not 20240520 or 20240801");
  }
  if (header.version != format->version) {
    fail(file.path(),
         "has version " + std::to_string(header.version) + ", expected " + std::to_string(format->version));
  }
  const int64_t expected = kHeaderBytes + int64_t{header.tokens} * size_of(format->type);
  if (header.tokens < 0 || bytes != expected) {
    throw_bad_input(file.path().string(),
                    "has " + std::to_string(bytes) + " bytes, which do not match the " + std::to_string(header.tokens) +
                        " tokens of its header",
                    "the shard is damaged or incomplete: write or copy it again");
  }
  return *format;
}

/// Looks for a token among `count` at `from`: its index, or `count`. A block is searched without a branch per token.
template <typename T>
int64_t first_of(const std::byte* from, int64_t count, T wanted) {
  constexpr int64_t kBlock = 1024;
  const auto at = [&](int64_t i) {
    T value;
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof value), sizeof value);
    return value;
  };
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(count, begin + kBlock);
    int found = 0;
    for (int64_t i = begin; i < end; ++i) found |= at(i) == wanted ? 1 : 0;
    for (int64_t i = begin; found != 0 && i < end; ++i) {
      if (at(i) == wanted) return i;
    }
  }
  return count;
}

int64_t first_of(const ShardFormat& format, const std::byte* from, int64_t count) {
  return format.type == TokenType::u16 ? first_of(from, count, static_cast<uint16_t>(format.end_of_text))
                                       : first_of(from, count, static_cast<uint32_t>(format.end_of_text));
}

}  // namespace

bool is_shard(const std::filesystem::path& file) {
  const MappedFile mapped(file);
  return std::ssize(mapped.bytes()) >= kHeaderBytes && format_of_magic(header_of(mapped.bytes()).magic) != nullptr;
}

ShardDataset::ShardDataset(const std::filesystem::path& name, const ShardFiles& files) : TokenDataset(name) {
  for (const auto& path : files.training) add(path);
  validation_begin_ = tokens_;
  for (const auto& path : files.validation) add(path);
  if (tokens_ == 0) fail(name, "holds no tokens");
}

void ShardDataset::add(const std::filesystem::path& path) {
  MappedFile file(path);
  const ShardFormat& format = checked_format(file);
  const auto row = static_cast<size_t>(&format - kFormats.data());
  if (!shards_.empty() && row != format_) {
    throw_bad_input(path.string(),
                    std::string("holds tokens of ") + format.tokenizer + ", the shards before it those of " +
                        kFormats[format_].tokenizer,
                    "train on shards of one tokenizer");
  }
  format_ = row;
  type_ = format.type;
  const int64_t tokens = header_of(file.bytes()).tokens;
  if (tokens == 0) return;
  shards_.push_back({std::move(file), tokens_, tokens});
  tokens_ += tokens;
}

TokenOrigin ShardDataset::origin() const {
  const ShardFormat& format = kFormats[format_];
  return {"llm.c token shards", format.tokenizer, format.vocabulary, format.end_of_text};
}

const std::byte* ShardDataset::Shard::at(int64_t token, int64_t token_bytes) const {
  return file.bytes().data() + kHeaderBytes + (token - first) * token_bytes;
}

const ShardDataset::Shard& ShardDataset::shard_of(int64_t token) const {
  const auto next = std::upper_bound(shards_.begin(), shards_.end(), token,
                                     [](int64_t value, const Shard& shard) { return value < shard.first; });
  return *std::prev(next);
}

void ShardDataset::read(int64_t first, std::span<int32_t> out) const {
  ensure(first >= 0 && first <= tokens_ && std::ssize(out) <= tokens_ - first, "tokens are read inside the dataset");
  while (!out.empty()) {
    const Shard& shard = shard_of(first);
    const auto count = static_cast<size_t>(std::min(std::ssize(out), shard.first + shard.tokens - first));
    const int64_t bad = widen_tokens(type_, shard.at(first, size_of(type_)), out.first(count));
    if (bad >= 0) fail(shard.file.path(), "token " + std::to_string(first + bad - shard.first) + " is above 2^31 - 1");
    first += static_cast<int64_t>(count);
    out = out.subspan(count);
  }
}

int64_t ShardDataset::first_end_of_text(int64_t begin, int64_t end) const {
  while (begin < end) {
    const Shard& shard = shard_of(begin);
    const int64_t stop = std::min(end, shard.first + shard.tokens);
    const int64_t found = first_of(kFormats[format_], shard.at(begin, size_of(type_)), stop - begin);
    if (begin + found < stop) return begin + found;
    begin = stop;
  }
  return end;
}

int64_t ShardDataset::next_document(int64_t token) const {
  if (token <= 0) return 0;
  return first_end_of_text(token, token <= validation_begin_ ? validation_begin_ : tokens_);
}

int64_t ShardDataset::previous_document(int64_t token) const {
  ensure(token > 0, "no document begins before the first token");
  const int64_t floor = token > validation_begin_ ? validation_begin_ : 0;
  // Backwards in windows that are searched forwards.
  constexpr int64_t kWindow = 4096;
  for (int64_t end = token; end > floor;) {
    const int64_t begin = std::max(floor, end - kWindow);
    int64_t last = end;
    for (int64_t at = begin; (at = first_end_of_text(at, end)) < end; ++at) last = at;
    if (last < end) return last;
    end = begin;
  }
  return floor;
}

void ShardDataset::each_document(const std::function<void(int64_t)>& visit) const {
  for (int64_t begin = 0; begin < tokens_;) {
    const int64_t end = next_document(begin + 1);
    visit(end - begin);
    begin = end;
  }
}

std::optional<int64_t> ShardDataset::own_validation_begin() const {
  return validation_begin_ < tokens_ ? std::optional(validation_begin_) : std::nullopt;
}

std::string ShardDataset::place_of(int64_t token) const {
  const Shard& shard = shard_of(token);
  return shard.file.path().string() + ": token " + std::to_string(token - shard.first);
}

std::vector<std::span<const std::byte>> ShardDataset::token_files() const {
  std::vector<std::span<const std::byte>> files;
  for (const Shard& shard : shards_) files.push_back(shard.file.bytes());
  return files;
}

}  // namespace foresail
