// The bytes of an input file, decompressed as they are read: plain, gzip or zstd, told apart by their first bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace foresail {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Up to out.size() bytes; 0 only at the end. Throws bad_input naming the file if its compressed data is damaged or ends
  /// early.
  virtual int64_t read(std::span<char> out) = 0;
};

/// Throws bad_input if the file is missing or not a regular file.
std::unique_ptr<ByteSource> open_byte_source(const std::filesystem::path& path);

}  // namespace foresail
