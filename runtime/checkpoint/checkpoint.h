// A checkpoint opened for reading: any plan loads any other's, rectangle by rectangle, straight into its arena, with every
// byte's digest verified on the way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/ranks.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/save.h"

namespace foresail {

class Checkpoint {
 public:
  /// Reads the manifest of a step-N folder. Throws bad_input naming what is missing or damaged.
  explicit Checkpoint(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }
  const RunState& state() const { return manifest_.state; }

  /// Every data file exists with its size (cheap; contents are verified as they are read). Throws bad_input.
  void check_files() const;

  /// Elements (row, column), (row, column + 1), ... in the tensor's dtype.
  using RowSink = std::function<void(int64_t row, int64_t column, std::span<const std::byte> elements)>;
  /// Hands every element of `part` to `sink` exactly once, in pieces of rows, staging at most piece_bytes. Throws bad_input
  /// naming file and tensor if a digest differs. Not for concurrent use of one Checkpoint.
  void read(const StoredTensor& tensor, const Rectangle& part, const RowSink& sink) const;
  /// Verifies every piece of one slab; the number of bytes read.
  int64_t verify_slab(const StoredTensor& tensor, const Slab& slab) const;

 private:
  const SafetensorsFile& file_of(const StoredTensor& tensor, const Slab& slab) const;
  std::span<const std::byte> read_piece(const SafetensorsFile& file, const StoredTensor& tensor, const Slab& slab,
                                        int64_t piece) const;
  void read_slab(const StoredTensor& tensor, const Slab& slab, const Rectangle& part, const RowSink& sink) const;

  std::filesystem::path path_;
  Manifest manifest_;
  mutable std::vector<std::unique_ptr<SafetensorsFile>> files_;  ///< opened when first needed
  mutable std::vector<std::byte> staging_;
};

struct LoadOptions {
  /// Allow element types to differ: f32 <-> f64 rounded to nearest, and a master copy filled from f32 or f64 parameters
  /// when the checkpoint has none. Without it any difference is bad_input.
  bool convert = false;
};

/// Fills the slices (second holders and replicas too) of every segment. Every element is covered exactly once or bad_input
/// says what is missing (tensor, quantity), has another shape or dtype, or is damaged.
void load_slices(const Checkpoint& checkpoint, std::span<const SegmentView> segments, const LoadOptions& options);

/// Collective: load_slices on every rank, then proof: what now lies in all arenas has the digests that the checkpoint
/// recorded (left out where elements were converted), and replicas are equal. Fails on all ranks together. Returns the
/// parameters' digest.
std::string restore_checkpoint(const std::filesystem::path& path, std::span<const SegmentView> segments,
                               const LoadOptions& options, const CheckpointRanks& ranks);

/// Digest of every logical tensor of a segment over all ranks, by name. All holders of a rectangle must have the same bits,
/// and second holders those of the first, or environment_failed names the tensor on all ranks. Collective.
std::map<std::string, std::string> tensor_digests(const SegmentView& segment, const CheckpointRanks& ranks);

/// Rounds to nearest. Throws bad_input naming `what` for pairs other than f32 and f64 (or equal types).
void convert_elements(std::span<const std::byte> from, DType from_type, std::byte* to, DType to_type,
                      const std::string& what);

}  // namespace foresail
