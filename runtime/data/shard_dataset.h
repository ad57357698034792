// llm.c's token shards, read as they are (dev/data/data_common.py of karpathy/llm.c): a header of 256 i32 (magic, version,
// number of tokens), then the tokens, u16 for GPT-2 and u32 for Llama 3. Shards follow each other as one stream; documents
// may reach from one into the next.
#pragma once

#include <filesystem>
#include <vector>

#include "runtime/data/token_dataset.h"

namespace foresail {

/// The shards that `path` names: a file; a folder (every .bin in it); a pattern with `*` in its last part; or a prefix of
/// PREFIX.bin, PREFIX_train*.bin, PREFIX_val*.bin or PREFIX_NUMBER.bin. Where names say train and val, the latter are for
/// validation; otherwise all are training shards. Nothing if there are none; throws bad_input if some names say train or
/// val and others do not, or if a folder mixes shards with other datasets.
ShardFiles find_shards(const std::filesystem::path& path);

/// Whether a file starts as a token shard does. Says nothing about the rest of it.
bool is_shard(const std::filesystem::path& file);

/// Every header is checked against its file: magic, version, size; all shards hold tokens of one tokenizer. A document
/// begins with the tokenizer's end-of-text token, as llm.c's writers put it; so it begins, too, at the first token of the
/// training and of the validation shards.
class ShardDataset final : public TokenDataset {
 public:
  ShardDataset(const std::filesystem::path& name, const ShardFiles& files);

  TokenOrigin origin() const override;
  DatasetCounts counts() const override { return {std::nullopt, std::nullopt, std::ssize(shards_)}; }
  void read(int64_t first, std::span<int32_t> out) const override;
  int64_t next_document(int64_t token) const override;
  int64_t previous_document(int64_t token) const override;
  void each_document(const std::function<void(int64_t)>& visit) const override;
  std::optional<int64_t> own_validation_begin() const override;
  std::string place_of(int64_t token) const override;
  std::vector<std::span<const std::byte>> token_files() const override;

 private:
  struct Shard {
    MappedFile file;
    int64_t first = 0, tokens = 0;  ///< positions in the stream
    const std::byte* at(int64_t token, int64_t token_bytes) const;
  };
  void add(const std::filesystem::path& path);
  /// The shard that holds a token; the last one for the position behind all.
  const Shard& shard_of(int64_t token) const;
  /// Position of the first one in [begin, end), or end.
  int64_t first_end_of_text(int64_t begin, int64_t end) const;

  std::vector<Shard> shards_;
  int64_t validation_begin_ = 0;  ///< tokens(): there are no validation shards
  size_t format_ = 0;             ///< row of the table of formats
};

}  // namespace foresail
