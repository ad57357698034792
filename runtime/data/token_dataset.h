// A dataset of tokens as training reads it, whoever wrote its files: tokens in one stream, cut into documents, perhaps with
// a loss mask. Files are mapped, never loaded whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/loss_mask.h"
#include "runtime/data/token_type.h"

namespace foresail {

/// What the files' format says about the tokens beyond their ids.
struct TokenOrigin {
  std::string format;           ///< "Megatron IndexedDataset", "llm.c token shards"
  std::string tokenizer;        ///< empty: the format does not say
  int64_t vocabulary = 0;       ///< ids are below it; 0: the format does not say
  int64_t document_token = -1;  ///< id at the ends of documents; -1: the format does not say
};

struct DatasetCounts {
  std::optional<int64_t> documents;  ///< nothing: only reading all tokens would tell
  std::optional<int64_t> sequences;  ///< of an index
  int64_t files = 1;                 ///< that hold tokens
};

/// Tokens are addressed by their position in the stream: files and documents follow each other. The files must not be
/// truncated while they are mapped. Safe to read from several threads.
class TokenDataset {
 public:
  virtual ~TokenDataset() = default;

  /// As the user named it.
  const std::filesystem::path& prefix() const { return prefix_; }
  TokenType type() const { return type_; }
  int64_t tokens() const { return tokens_; }
  /// Which tokens count in the loss; null: all do.
  const LossMask* mask() const { return mask_ ? &*mask_ : nullptr; }

  virtual TokenOrigin origin() const = 0;
  virtual DatasetCounts counts() const = 0;
  /// Tokens [first, first + out.size()). Throws bad_input on an id that is negative or does not fit i32.
  virtual void read(int64_t first, std::span<int32_t> out) const = 0;
  /// Where the first document begins that does so at `token` or after it; tokens() if none does.
  virtual int64_t next_document(int64_t token) const = 0;
  /// Where the last document begins that does so before `token` (> 0).
  virtual int64_t previous_document(int64_t token) const = 0;
  /// Calls visit with the length of every document in order. May read all tokens.
  virtual void each_document(const std::function<void(int64_t tokens)>& visit) const = 0;
  /// The first token held out for validation, if the files themselves say so: it overrides a job's fraction.
  virtual std::optional<int64_t> own_validation_begin() const { return std::nullopt; }
  /// "FILE: token N", for messages.
  virtual std::string place_of(int64_t token) const = 0;

  /// The files that hold tokens, whole, and the index, if there is one: what tells datasets apart.
  virtual std::vector<std::span<const std::byte>> token_files() const = 0;
  virtual std::span<const std::byte> index() const { return {}; }

 protected:
  explicit TokenDataset(std::filesystem::path prefix) : prefix_(std::move(prefix)) {}

  std::filesystem::path prefix_;
  TokenType type_ = TokenType::u16;
  int64_t tokens_ = 0;
  std::optional<LossMask> mask_;
};

struct ShardFiles {
  std::vector<std::filesystem::path> training, validation;  ///< in the order of their names
};

/// The files that a name stands for: two with an index, or shards.
struct DatasetPlace {
  std::filesystem::path name;                    ///< as the user gave it
  std::optional<std::filesystem::path> indexed;  ///< prefix of PREFIX.bin and PREFIX.idx
  ShardFiles shards;                             ///< otherwise
};

/// What `path` names: the prefix of PREFIX.bin and PREFIX.idx (indexed_dataset.h), one of these two files, or token shards
/// of llm.c (shard_dataset.h): a file, a folder, a prefix or a pattern. Throws bad_input if there is no such thing.
DatasetPlace locate_dataset(const std::filesystem::path& path);

/// Throws bad_input, naming file and place, for whatever is not sound.
std::unique_ptr<TokenDataset> open_dataset(const DatasetPlace& place);
inline std::unique_ptr<TokenDataset> open_dataset(const std::filesystem::path& path) {
  return open_dataset(locate_dataset(path));
}

}  // namespace foresail
