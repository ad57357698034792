#include "runtime/checkpoint/checkpoint.h"

#include <algorithm>
#include <cstring>

#include "core/digest.h"
#include "core/error.h"
#include "core/file.h"

namespace foresail {
namespace {

constexpr const char* kMend = "the checkpoint is damaged: use another one";
constexpr int64_t kManifestLimitBytes = int64_t{1} << 30;

Manifest read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kManifestName;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    throw_bad_input(folder.string(), "is no complete checkpoint (no manifest.json)", "name a step-N folder of a run");
  }
  return manifest_from_json(read_file(path, kManifestLimitBytes), path.string());
}

void check_header(const std::filesystem::path& path, const StoredFile& stored) {
  if (stored.header_digest == kNoDigestText) return;
  const SafetensorsFile file(path);
  int64_t header_bytes = stored.bytes;
  for (const TensorEntry& entry : file.tensors()) header_bytes = std::min(header_bytes, entry.offset);
  std::string header(static_cast<size_t>(header_bytes), '\0');
  PosixFile::open_to_read(path).read_at(0, std::as_writable_bytes(std::span(header)));
  if (digest_of(header) != stored.header_digest)
    throw_bad_input(path.string(), "its header differs from the digest", kMend);
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& path) : path_(path), manifest_(read_manifest(path)) {
  files_.resize(manifest_.files.size());
}

void Checkpoint::check_files() const {
  for (const StoredFile& stored : manifest_.files) {
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path_ / stored.name, error);
    if (error) throw_bad_input((path_ / stored.name).string(), "is missing: " + error.message(), kMend);
    if (static_cast<int64_t>(bytes) != stored.bytes) {
      throw_bad_input((path_ / stored.name).string(),
                      "has " + std::to_string(bytes) + " bytes, the manifest says " + std::to_string(stored.bytes),
                      kMend);
    }
  }
}

// Opens the file on first use; its header must be the one that was written and must describe the slab as the manifest does.
const SafetensorsFile& Checkpoint::file_of(const StoredTensor& tensor, const Slab& slab) const {
  const auto index = static_cast<size_t>(slab.file);
  const StoredFile& stored = manifest_.files[index];
  if (files_[index] == nullptr) {
    check_header(path_ / stored.name, stored);
    files_[index] = std::make_unique<SafetensorsFile>(path_ / stored.name);
  }
  const TensorEntry& entry = files_[index]->at(slab.name);
  const auto shape =
      tensor.shape.size() > 1 ? std::vector{slab.part.rows(), slab.part.columns()} : std::vector{slab.part.rows()};
  if (entry.offset != slab.offset || entry.shape != shape || entry.type != safetensors_type(tensor.dtype)) {
    throw_bad_input((path_ / stored.name).string(), "tensor '" + slab.name + "' is not as the manifest describes it",
                    kMend);
  }
  return *files_[index];
}

std::span<const std::byte> Checkpoint::read_piece(const SafetensorsFile& file, const StoredTensor& tensor,
                                                  const Slab& slab, int64_t piece) const {
  const TensorEntry& entry = file.at(slab.name);
  const int64_t begin = piece * manifest_.piece_bytes;
  staging_.resize(static_cast<size_t>(std::min(manifest_.piece_bytes, entry.bytes - begin)));
  file.read(entry, begin, staging_);
  if (!slab.pieces.empty() && digest_of(staging_) != slab.pieces[static_cast<size_t>(piece)]) {
    throw_bad_input(file.path().string(),
                    "tensor '" + tensor.full_name() + "' is damaged in bytes " + std::to_string(entry.offset + begin) +
                        " to " + std::to_string(entry.offset + begin + std::ssize(staging_)),
                    kMend);
  }
  return staging_;
}

void Checkpoint::read_slab(const StoredTensor& tensor, const Slab& slab, const Rectangle& part,
                           const RowSink& sink) const {
  const Rectangle wanted = intersection(slab.part, part);
  if (wanted.rows() <= 0 || wanted.columns() <= 0) return;
  const SafetensorsFile& file = file_of(tensor, slab);
  const int64_t element_bytes = size_of(tensor.dtype), width = slab.part.columns();
  const int64_t piece_elements = manifest_.piece_bytes / element_bytes;
  // Elements of the slab, in its own row-major order, from the first wanted row to the last.
  const int64_t first = (wanted.row_begin - slab.part.row_begin) * width;
  const int64_t end = (wanted.row_end - slab.part.row_begin) * width;
  for (int64_t piece = first / piece_elements; piece * piece_elements < end; ++piece) {
    const std::span<const std::byte> bytes = read_piece(file, tensor, slab, piece);
    const int64_t piece_first = piece * piece_elements;
    const int64_t piece_end = piece_first + std::ssize(bytes) / element_bytes;
    const int64_t last_row = std::min(end, piece_end) - 1;
    for (int64_t row = std::max(first, piece_first) / width; row <= last_row / width; ++row) {
      const int64_t begin_column =
          std::max(wanted.column_begin, slab.part.column_begin + std::max<int64_t>(0, piece_first - row * width));
      const int64_t end_column =
          std::min(wanted.column_end, slab.part.column_begin + std::min(width, piece_end - row * width));
      if (begin_column >= end_column) continue;
      const int64_t at = row * width + begin_column - slab.part.column_begin - piece_first;
      sink(slab.part.row_begin + row, begin_column,
           bytes.subspan(static_cast<size_t>(at * element_bytes),
                         static_cast<size_t>((end_column - begin_column) * element_bytes)));
    }
  }
}

void Checkpoint::read(const StoredTensor& tensor, const Rectangle& part, const RowSink& sink) const {
  for (const Slab& slab : tensor.slabs) read_slab(tensor, slab, part, sink);
}

TensorSource Checkpoint::source(const StoredTensor& tensor) const {
  return {path_.string() + ": tensor '" + tensor.full_name() + "'", tensor.shape, tensor.dtype,
          [this, &tensor](const Rectangle& part, const RowSink& sink) { read(tensor, part, sink); }};
}

int64_t Checkpoint::verify_slab(const StoredTensor& tensor, const Slab& slab) const {
  const SafetensorsFile& file = file_of(tensor, slab);
  for (int64_t piece = 0; piece < std::ssize(slab.pieces); ++piece) read_piece(file, tensor, slab, piece);
  return slab.part.elements() * size_of(tensor.dtype);
}

}  // namespace foresail
