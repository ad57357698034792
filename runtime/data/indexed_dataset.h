// Token datasets in Megatron's IndexedDataset form: PREFIX.bin holds the tokens back to back, PREFIX.idx the length and
// place of every sequence and the first sequence of every document. A reader that trusts nothing, and a streaming writer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/digest.h"
#include "runtime/io/posix_file.h"

namespace foresail {

/// Codes of the format. Floating-point files exist (codes 6 and 7); they hold no tokens and are refused.
enum class TokenType : uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };

/// Bytes of one token.
int64_t size_of(TokenType type);
std::string_view name_of(TokenType type);
/// What the format's own writer takes: u16 below 65500 ids, i32 otherwise.
TokenType token_type_for(int64_t vocabulary);

std::filesystem::path bin_path(const std::filesystem::path& prefix);
std::filesystem::path idx_path(const std::filesystem::path& prefix);

/// Both files mapped and the index checked completely: magic, version, type, sizes, lengths, offsets as running sums that
/// end with PREFIX.bin, document boundaries ascending from 0 to the number of sequences. Anything else is bad_input
/// naming file and place. Tokens are addressed by their position in PREFIX.bin: documents follow each other.
/// The files must not be truncated while they are mapped. Safe to read from several threads.
class IndexedDataset {
 public:
  explicit IndexedDataset(const std::filesystem::path& prefix);

  const std::filesystem::path& prefix() const { return prefix_; }
  TokenType type() const { return type_; }
  int64_t sequences() const { return sequences_; }
  int64_t documents() const { return documents_; }
  int64_t tokens() const { return tokens_; }
  /// Position of the first token of a document; documents() gives tokens(). The document's end is the next one's begin.
  int64_t document_begin(int64_t document) const;
  /// Tokens [first, first + out.size()). Throws bad_input on an id that is negative or does not fit i32.
  void read(int64_t first, std::span<int32_t> out) const;
  std::span<const std::byte> bin_bytes() const { return bin_.bytes(); }
  std::span<const std::byte> idx_bytes() const { return idx_.bytes(); }

 private:
  int64_t length_at(int64_t sequence) const;
  int64_t offset_at(int64_t sequence) const;
  int64_t document_at(int64_t index) const;
  void read_header();
  void check_sequences();
  void check_documents() const;

  std::filesystem::path prefix_;
  MappedFile bin_, idx_;
  TokenType type_ = TokenType::u16;
  int64_t sequences_ = 0, documents_ = 0, tokens_ = 0;
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
