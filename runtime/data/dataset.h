// What is known about a dataset beside its tokens: PREFIX.dataset.json (schema foresail.dataset/1), its inspection and
// verification, and the identity that a checkpoint remembers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/indexed_dataset.h"
#include "runtime/data/token_dataset.h"

namespace foresail {

/// Documents of `least` to `most` tokens.
struct LengthBin {
  int64_t least = 0, most = 0, documents = 0, tokens = 0;
  bool operator==(const LengthBin&) const = default;
};

/// Bins [0, 0], [1, 1], [2, 3], [4, 7], ...; only those that are not empty are kept.
class LengthHistogram {
 public:
  void add(int64_t tokens);
  std::vector<LengthBin> bins() const;

 private:
  int64_t documents_[64] = {}, tokens_[64] = {};
};

/// PREFIX.mask (loss_mask.h).
struct MaskInfo {
  int64_t counted_tokens = 0;  ///< in the loss
  int64_t bytes = 0;
  std::string digest;
  bool operator==(const MaskInfo&) const = default;
};

/// PREFIX.dataset.json.
struct DatasetInfo {
  std::string tokenizer = "bytes";               ///< or "byte-level-bpe": PREFIX.tokenizer.json is a copy of it
  std::string tokenizer_name, tokenizer_digest;  ///< file name and digest of that tokenizer.json; empty for bytes
  int64_t vocabulary = 0;                        ///< ids are below it
  int64_t end_of_document = -1;                  ///< id that ends every document; -1: none
  int64_t maximum_id = 0;                        ///< largest id that occurs
  std::string token_type;                        ///< "u16" or "i32"
  int64_t tokens = 0, documents = 0;
  int64_t bin_bytes = 0, idx_bytes = 0;
  std::string bin_digest, idx_digest;
  std::vector<LengthBin> document_lengths;
  std::optional<MaskInfo> mask;  ///< nothing: every token counts
  bool operator==(const DatasetInfo&) const = default;
};

std::filesystem::path dataset_info_path(const std::filesystem::path& prefix);
/// The copy of the tokenizer.json that a dataset was made with.
std::filesystem::path tokenizer_path(const std::filesystem::path& prefix);
std::string dataset_info_to_json(const DatasetInfo& info);
/// Throws bad_input naming the field.
DatasetInfo dataset_info_from_json(const std::string& text, const std::string& source);
/// Nothing if PREFIX.dataset.json does not exist (a dataset of another writer). Throws bad_input if it does not describe
/// these files (sizes, counts, type, whether there is a mask).
std::optional<DatasetInfo> load_dataset_info(const TokenDataset& data);

struct DatasetSummary {
  std::string prefix, token_type;
  TokenOrigin origin;
  DatasetCounts counts;
  int64_t tokens = 0, bin_bytes = 0;
  int64_t counted_tokens = 0;                   ///< in the loss
  std::optional<int64_t> own_validation_begin;  ///< the files say where validation begins
  std::optional<std::vector<LengthBin>> document_lengths;
  std::optional<DatasetInfo> info;
};

/// Lengths of documents come from PREFIX.dataset.json; without one they are computed if `lengths` asks for it (for token
/// shards that reads everything). Throws bad_input if the files are missing or not sound.
DatasetSummary inspect_dataset(const std::filesystem::path& path, bool lengths = false);
std::string dataset_summary_to_json(const DatasetSummary& summary);

struct DatasetVerdict {
  int64_t tokens = 0;  ///< read and checked
  int64_t maximum_id = 0;
  std::vector<std::string> problems;  ///< one line each, naming the file; empty: sound
  bool passed() const { return problems.empty(); }
};

/// Reads everything: index or shard headers, digests, counts, lengths and mask against PREFIX.dataset.json, every id below
/// the vocabulary where that is known. Damage is a problem in the verdict; a missing file throws bad_input.
DatasetVerdict verify_dataset(const std::filesystem::path& path);
std::string dataset_verdict_to_json(const DatasetVerdict& verdict);

/// Refuses a dataset whose ids reach beyond the model's vocabulary: by dataset.json's largest id, by the vocabulary that
/// the format implies, or else by reading tokens: all up to 2^26, beyond that as many spread evenly (the rest is checked
/// as it is read). Throws bad_input.
void check_vocabulary(const TokenDataset& data, int64_t model_vocabulary);

/// Tells datasets apart in bounded time: digest of the whole index, the size of every other file and up to 1024 pieces of
/// 4 KiB spread evenly over them (all of a single one up to 4 MiB). Complete digests are the matter of verify_dataset.
std::string dataset_identity(const TokenDataset& data);

}  // namespace foresail
