// safetensors files: a strict reader and a writer. The format: u64 header length, JSON header (name -> dtype, shape,
// data_offsets), tensor bytes back to back, little-endian and row-major.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "runtime/io/posix_file.h"

namespace foresail {

/// One tensor of a file.
struct TensorEntry {
  std::string name;
  std::string type;            ///< as the format spells it: "F32", "BF16", "I64", ...
  std::vector<int64_t> shape;  ///< empty: a scalar
  int64_t offset = 0;          ///< of the first byte, from the start of the file
  int64_t bytes = 0;

  int64_t elements() const;
};

/// "F64", "F32", "BF16", "F16", "I32".
std::string_view safetensors_type(DType type);
/// Ours for the format's name; nothing for types that a Program does not have ("I64", "F8_E4M3", ...).
std::optional<DType> dtype_from_safetensors(std::string_view type);

/// An opened file whose header was checked completely: known types, sizes that match the shapes, no hole, no overlap, no
/// duplicate name, data that ends with the file, header of at most 100,000,000 bytes. Anything else is bad_input naming
/// the file and the tensor. Reads are positional and may be made from several threads.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  /// In order of offset.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  /// nullptr if there is none of that name.
  const TensorEntry* find(std::string_view name) const;
  /// Throws bad_input naming the file if there is none of that name.
  const TensorEntry& at(std::string_view name) const;
  /// The __metadata__ object.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Bytes [byte_offset, byte_offset + out.size()) of the tensor; they must lie inside it.
  void read(const TensorEntry& entry, int64_t byte_offset, std::span<std::byte> out) const;

 private:
  PosixFile file_;
  std::vector<TensorEntry> tensors_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// A tensor to be written; `type` is the format's name, offset and bytes are computed.
struct TensorToWrite {
  std::string name;
  std::string type;
  std::vector<int64_t> shape;
};

/// Writes tensors piece by piece, in any order, into a file whose header is fixed at the start. Data begins at a multiple
/// of 64; tensors are ordered by descending element size, then by name, so every one is aligned to its element.
class SafetensorsWriter {
 public:
  /// Throws bad_input for a duplicate name or unknown type, environment_failed if the file cannot be created.
  SafetensorsWriter(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                    const std::map<std::string, std::string>& metadata = {});
  /// Position in the file of a tensor of the list given, by its index there.
  const TensorEntry& entry(size_t index) const { return entries_[index]; }
  void write(size_t index, int64_t byte_offset, std::span<const std::byte> bytes);
  /// Throws environment_failed if bytes are missing; syncs and closes. Without it the file is not valid.
  void finish();

 private:
  PosixFile file_;
  std::vector<TensorEntry> entries_;  ///< in the caller's order
  std::vector<int64_t> written_;      ///< bytes written of each
  int64_t total_bytes_ = 0;
};

/// A tensor that lies in memory.
struct TensorInMemory {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;
};

/// The whole file at once: written aside, synced, renamed over `path`.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorInMemory> tensors,
                       const std::map<std::string, std::string>& metadata = {});

/// Bits of one element, by the format's name; nothing for an unknown name.
std::optional<int64_t> safetensors_bits(std::string_view type);

// The header alone (safetensors_json.cpp).

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< in order of offset; offsets from the start of the data
  std::map<std::string, std::string> metadata;
};

/// Throws bad_input; `data_bytes` is the size of the file behind the header.
SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes, const std::string& source);
/// Entries in the order given, offsets from the start of the data.
std::string format_safetensors_header(std::span<const TensorEntry> tensors,
                                      const std::map<std::string, std::string>& metadata);

}  // namespace foresail
