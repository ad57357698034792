// Which tokens of a dataset count in the loss: PREFIX.mask, one bit per token. A token that does not count (a prompt) is
// read as usual and never a target.
//
//   offset  bytes         meaning
//   0       8             ASCII FSMASK, zero byte, version 1
//   8       8             u64 tokens of the dataset
//   16      (tokens+7)/8  bit i mod 8 (lowest first) of byte i / 8: token i counts; bits beyond the last token are 0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/io/posix_file.h"

namespace foresail {

std::filesystem::path mask_path(const std::filesystem::path& prefix);

/// Mapped, its header and size checked. Safe to read from several threads.
class LossMask {
 public:
  /// Throws bad_input unless the file is a mask for a dataset of that many tokens.
  LossMask(const std::filesystem::path& path, int64_t tokens);

  bool counts(int64_t token) const;
  /// How many of tokens [first, first + tokens) count.
  int64_t counted(int64_t first, int64_t tokens) const;
  std::span<const std::byte> bytes() const { return file_.bytes(); }

 private:
  const std::byte* bits() const;

  MappedFile file_;
  int64_t tokens_ = 0;
};

/// Writes `PREFIX.mask.tmp` once a token that does not count arrives: a dataset in which all count has no mask.
class LossMaskWriter {
 public:
  explicit LossMaskWriter(const std::filesystem::path& prefix) : prefix_(prefix) {}

  /// The next `tokens` tokens count or not.
  void append(int64_t tokens, bool count);
  int64_t tokens() const { return tokens_; }
  int64_t counted() const { return counted_; }
  /// A file is being written.
  bool needed() const { return file_.has_value(); }
  /// Completes the file, if there is one, and closes it. Errors of the disk are environment_failed.
  void finish();
  const std::string& digest() const { return digest_; }  ///< of the finished file
  int64_t bytes() const;                                 ///< of the finished file

 private:
  void put(int64_t tokens, bool count);
  void flush();

  std::filesystem::path prefix_;
  std::optional<PosixFile> file_;
  std::vector<std::byte> buffer_;  ///< whole bytes not yet written
  uint8_t open_byte_ = 0;          ///< the bits of the last, unfinished byte
  int64_t tokens_ = 0, counted_ = 0;
  std::string digest_;
};

}  // namespace foresail
