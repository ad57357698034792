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
#include "runtime/checkpoint/tensor_source.h"

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

  /// Hands every element of `part` to `sink` exactly once, in pieces of rows, staging at most piece_bytes. Throws bad_input
  /// naming file and tensor if a digest differs. Not for concurrent use of one Checkpoint.
  void read(const StoredTensor& tensor, const Rectangle& part, const RowSink& sink) const;
  /// The same, as what is read from anywhere. The checkpoint must outlive it.
  TensorSource source(const StoredTensor& tensor) const;
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
  /// Allow element types to differ, rounded to nearest; a master copy filled from parameters when the checkpoint has none;
  /// and wider parameters than the checkpoint's filled from its master copy. Without it any difference is bad_input.
  bool convert = false;
};

/// Fills the slices (second holders and replicas too) of every segment. Every element is covered exactly once or bad_input
/// says what is missing (tensor, quantity), has another shape or dtype, or is damaged.
Conversion load_slices(const Checkpoint& checkpoint, std::span<const SegmentView> segments, const LoadOptions& options);

/// Collective: load_slices on every rank, then proof: what now lies in all arenas has the digests that the checkpoint
/// recorded (left out where elements were converted, or nothing was recorded), and replicas are equal. Fails on all ranks
/// together. Returns the parameters' digest.
std::string restore_checkpoint(const std::filesystem::path& path, std::span<const SegmentView> segments,
                               const LoadOptions& options, const CheckpointRanks& ranks);

/// Digest of every logical tensor of a segment over all ranks, by name. All holders of a rectangle must have the same bits,
/// and second holders those of the first, or environment_failed names the tensor on all ranks. Collective.
std::map<std::string, std::string> tensor_digests(const SegmentView& segment, const CheckpointRanks& ranks);

}  // namespace foresail
