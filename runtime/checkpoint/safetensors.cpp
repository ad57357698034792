#include "runtime/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

#include "core/error.h"

namespace foresail {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors bytes are used as they lie in memory");

constexpr int64_t kHeaderLimitBytes = 100'000'000;  // readers of the format reject longer headers
constexpr int64_t kDataAlignment = 64;
constexpr int64_t kPrefixBytes = 8;

struct TypeRow {
  std::string_view name;
  int64_t bits;
};

constexpr std::array kTypes = {
    TypeRow{"BOOL", 8},    TypeRow{"U8", 8},      TypeRow{"I8", 8},          TypeRow{"F8_E5M2", 8},
    TypeRow{"F8_E4M3", 8}, TypeRow{"F8_E8M0", 8}, TypeRow{"F8_E4M3FNUZ", 8}, TypeRow{"F8_E5M2FNUZ", 8},
    TypeRow{"I16", 16},    TypeRow{"U16", 16},    TypeRow{"F16", 16},        TypeRow{"BF16", 16},
    TypeRow{"I32", 32},    TypeRow{"U32", 32},    TypeRow{"F32", 32},        TypeRow{"C64", 64},
    TypeRow{"F64", 64},    TypeRow{"I64", 64},    TypeRow{"U64", 64},        TypeRow{"F4", 4},
    TypeRow{"F6_E2M3", 6}, TypeRow{"F6_E3M2", 6},
};

struct DTypeRow {
  DType dtype;
  std::string_view name;
};

constexpr std::array kDTypes = {
    DTypeRow{DType::f64, "F64"}, DTypeRow{DType::f32, "F32"}, DTypeRow{DType::bf16, "BF16"},
    DTypeRow{DType::f16, "F16"}, DTypeRow{DType::i32, "I32"},
};

// Bytes of a tensor about to be written.
int64_t bytes_of(const TensorToWrite& tensor, const std::string& source) {
  const auto bits = safetensors_bits(tensor.type);
  if (!bits)
    throw_bad_input(source, "tensor '" + tensor.name + "' has unknown type " + tensor.type, "use a known type");
  int64_t total_bits = *bits;
  for (const int64_t extent : tensor.shape) {
    if (extent < 0 || __builtin_mul_overflow(total_bits, extent, &total_bits)) {
      throw_bad_input(source, "tensor '" + tensor.name + "' has an impossible shape", "give extents of at least 0");
    }
  }
  if (total_bits % 8 != 0) {
    throw_bad_input(source, "tensor '" + tensor.name + "' does not end on a byte", "pad its last extent");
  }
  return total_bits / 8;
}

// The order in the file: descending element size, then name.
std::vector<size_t> file_order(std::span<const TensorToWrite> tensors) {
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t left, size_t right) {
    const int64_t left_bits = safetensors_bits(tensors[left].type).value_or(0);
    const int64_t right_bits = safetensors_bits(tensors[right].type).value_or(0);
    return left_bits != right_bits ? left_bits > right_bits : tensors[left].name < tensors[right].name;
  });
  return order;
}

}  // namespace

int64_t TensorEntry::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::optional<int64_t> safetensors_bits(std::string_view type) {
  for (const TypeRow& row : kTypes) {
    if (row.name == type) return row.bits;
  }
  return std::nullopt;
}

std::string_view safetensors_type(DType type) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == type) return row.name;
  }
  ensure(false, "every DType has a safetensors name");
  return "";
}

std::optional<DType> dtype_from_safetensors(std::string_view type) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == type) return row.dtype;
  }
  return std::nullopt;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(PosixFile::open_to_read(path)) {
  const int64_t file_bytes = file_.size();
  uint64_t header_bytes = 0;
  file_.read_at(0, std::as_writable_bytes(std::span(&header_bytes, 1)));
  if (header_bytes > static_cast<uint64_t>(std::min(kHeaderLimitBytes, file_bytes - kPrefixBytes))) {
    throw_bad_input(path.string(), "header length " + std::to_string(header_bytes) + " exceeds the file or the limit",
                    "this is not a complete safetensors file: fetch or write it again");
  }
  std::string json(header_bytes, '\0');
  file_.read_at(kPrefixBytes, std::as_writable_bytes(std::span(json)));
  const int64_t data_begin = kPrefixBytes + static_cast<int64_t>(header_bytes);
  SafetensorsHeader header = parse_safetensors_header(json, file_bytes - data_begin, path.string());
  tensors_ = std::move(header.tensors);
  metadata_ = std::move(header.metadata);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    tensors_[i].offset += data_begin;
    by_name_.emplace(tensors_[i].name, i);
  }
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

const TensorEntry& SafetensorsFile::at(std::string_view name) const {
  const TensorEntry* const entry = find(name);
  if (entry == nullptr) {
    throw_bad_input(path().string(), "has no tensor '" + std::string(name) + "'",
                    "check that the file belongs to this model");
  }
  return *entry;
}

void SafetensorsFile::read(const TensorEntry& entry, int64_t byte_offset, std::span<std::byte> out) const {
  ensure(byte_offset >= 0 && byte_offset <= entry.bytes && std::ssize(out) <= entry.bytes - byte_offset,
         "a safetensors read stays inside its tensor");
  file_.read_at(entry.offset + byte_offset, out);
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : entries_(tensors.size()), written_(tensors.size(), 0) {
  std::vector<TensorEntry> in_file_order;
  int64_t data_bytes = 0;
  for (const size_t index : file_order(tensors)) {
    const TensorToWrite& tensor = tensors[index];
    const int64_t bytes = bytes_of(tensor, path.string());
    entries_[index] = {tensor.name, tensor.type, tensor.shape, data_bytes, bytes};
    in_file_order.push_back(entries_[index]);
    if (__builtin_add_overflow(data_bytes, bytes, &data_bytes)) {
      throw_bad_input(path.string(), "the tensors exceed 2^63 bytes", "write fewer tensors per file");
    }
  }
  std::string header = format_safetensors_header(in_file_order, metadata);
  const int64_t unpadded = kPrefixBytes + std::ssize(header);
  const int64_t data_begin = (unpadded + kDataAlignment - 1) / kDataAlignment * kDataAlignment;
  header.append(static_cast<size_t>(data_begin - unpadded), ' ');
  if (std::ssize(header) > kHeaderLimitBytes) {
    throw_bad_input(path.string(), "the header would exceed 100,000,000 bytes", "write fewer tensors per file");
  }
  // Validates our own header, duplicate names included, before a byte is written.
  parse_safetensors_header(header, data_bytes, path.string());
  for (TensorEntry& entry : entries_) entry.offset += data_begin;
  total_bytes_ = data_begin + data_bytes;
  file_ = PosixFile::create(path);
  const uint64_t header_bytes = header.size();
  file_.write_at(0, std::as_bytes(std::span(&header_bytes, 1)));
  file_.write_at(kPrefixBytes, std::as_bytes(std::span(header)));
}

void SafetensorsWriter::write(size_t index, int64_t byte_offset, std::span<const std::byte> bytes) {
  const TensorEntry& entry = entries_.at(index);
  ensure(byte_offset >= 0 && byte_offset <= entry.bytes && std::ssize(bytes) <= entry.bytes - byte_offset,
         "a safetensors write stays inside its tensor");
  file_.write_at(entry.offset + byte_offset, bytes);
  written_[index] += std::ssize(bytes);
}

void SafetensorsWriter::finish() {
  for (size_t i = 0; i < entries_.size(); ++i) {
    ensure(written_[i] == entries_[i].bytes, "every byte of a safetensors file is written exactly once");
  }
  ensure(file_.size() == total_bytes_, "a safetensors file ends with its last tensor");
  file_.sync();
  file_.close();
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorInMemory> tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<TensorToWrite> to_write;
  for (const TensorInMemory& tensor : tensors) {
    to_write.push_back({tensor.name, std::string(safetensors_type(tensor.dtype)), tensor.shape});
  }
  const std::filesystem::path aside = path.string() + ".tmp";
  RemoveOnFailure cleanup(aside);
  SafetensorsWriter writer(aside, to_write, metadata);
  for (size_t i = 0; i < tensors.size(); ++i) writer.write(i, 0, tensors[i].data);
  writer.finish();
  rename_and_sync(aside, path);
  cleanup.release();
}

}  // namespace foresail
