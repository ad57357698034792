// Token datasets in Megatron's IndexedDataset form: PREFIX.bin holds the tokens back to back, PREFIX.idx the length and
// place of every sequence and the first sequence of every document. A reader that trusts nothing, and a streaming writer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/digest.h"
#include "runtime/data/token_dataset.h"
#include "runtime/io/posix_file.h"

namespace foresail {

std::filesystem::path bin_path(const std::filesystem::path& prefix);
std::filesystem::path idx_path(const std::filesystem::path& prefix);

/// Both files mapped and the index checked completely: magic, version, type, sizes, lengths, offsets as running sums that
/// end with PREFIX.bin, document boundaries ascending from 0 to the number of sequences. Anything else is bad_input
/// naming file and place. A PREFIX.mask beside them (loss_mask.h) must fit.
class IndexedDataset final : public TokenDataset {
 public:
  explicit IndexedDataset(const std::filesystem::path& prefix);

  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return documents_; }
  /// Position of the first token of a document; documents() gives tokens(). The document's end is the next one's begin.
  int64_t document_begin(int64_t document) const;
  std::span<const std::byte> bin_bytes() const { return bin_.bytes(); }
  std::span<const std::byte> idx_bytes() const { return idx_.bytes(); }

  TokenOrigin origin() const override { return {"Megatron IndexedDataset", "", 0, -1}; }
  DatasetCounts counts() const override { return {documents_, sequences_, 1}; }
  void read(int64_t first, std::span<int32_t> out) const override;
  int64_t next_document(int64_t token) const override;
  int64_t previous_document(int64_t token) const override;
  void each_document(const std::function<void(int64_t)>& visit) const override;
  std::string place_of(int64_t token) const override;
  std::vector<std::span<const std::byte>> token_files() const override { return {bin_.bytes()}; }
  std::span<const std::byte> index() const override { return idx_.bytes(); }

 private:
  int64_t length_at(int64_t sequence) const;
  int64_t offset_at(int64_t sequence) const;
  int64_t document_at(int64_t index) const;
  /// The first document that begins at `token` or after it; documents() if none does.
  int64_t first_document_from(int64_t token) const;
  void read_header();
  void check_sequences();
  void check_documents() const;

  MappedFile bin_, idx_;
  int64_t sequences_ = 0, documents_ = 0;
};

/// Writes `PREFIX.bin.tmp` and `PREFIX.idx.tmp` in bounded memory, one sequence per document; the caller renames them once
/// it is content. Errors of the disk are environment_failed.
class IndexedDatasetWriter {
 public:
  IndexedDatasetWriter(const std::filesystem::path& prefix, TokenType type);

  /// Adds tokens to the document under construction. They must fit the type.
  void append(std::span<const int32_t> tokens);
  /// Ends the document; an empty one is legal in the format. Throws bad_input for 2^31 tokens or more.
  void end_document();
  int64_t tokens() const { return tokens_; }
  int64_t documents() const { return documents_; }
  int64_t document_tokens() const { return document_tokens_; }
  /// Completes both files, syncs and closes them.
  void finish();
  /// Digests of the finished files (core/digest.h).
  const std::string& bin_digest() const { return bin_digest_; }
  const std::string& idx_digest() const { return idx_digest_; }
  int64_t bin_bytes() const { return tokens_ * size_of(type_); }
  int64_t idx_bytes() const;

 private:
  void flush_tokens();
  void flush_lengths();
  void write_offsets();
  void write_documents();

  PosixFile bin_, idx_;
  TokenType type_;
  std::vector<std::byte> buffer_;  ///< encoded tokens not yet written
  std::vector<int32_t> lengths_;   ///< lengths not yet written
  int64_t tokens_ = 0, documents_ = 0, document_tokens_ = 0, lengths_written_ = 0;
  Digest bin_content_;
  std::string bin_digest_, idx_digest_;
};

}  // namespace foresail
