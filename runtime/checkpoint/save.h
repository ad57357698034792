// Writing checkpoints. Every rank writes the rectangles it owns into one safetensors file of its own, straight from the
// arena; rank 0 collects where everything lies, writes the manifest, and publishes the folder by renaming it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "core/dtype.h"
#include "program/compile.h"
#include "program/program.h"
#include "runtime/checkpoint/manifest.h"
#include "runtime/checkpoint/ranks.h"

namespace foresail {

/// One parameter-shaped persistent segment of the arena and what this rank holds in it: ParameterSlice::element_offset
/// counts from `data`.
struct SegmentView {
  Quantity quantity = Quantity::parameter;
  DType dtype = DType::f32;
  std::byte* data = nullptr;
  std::span<const ParameterSlice> slices;
};

/// The first element of one of the segment's slices; its rows follow at row_stride.
std::byte* begin_of(const SegmentView& segment, const ParameterSlice& slice);

/// Which segments of a Program exist, in an arena that begins at `arena`: parameters, moments, and the master copy if its
/// precision has one. `slices` must outlive the views.
std::vector<SegmentView> segment_views(const Program& program, const RankSlices& slices, std::byte* arena);

struct SaveRequest {
  std::filesystem::path folder;           ///< RUN/checkpoints; created if missing
  RunState state;                         ///< of rank 0
  std::span<const SegmentView> segments;  ///< the same quantities on all ranks
  int64_t keep = 3;                       ///< newest complete checkpoints left after this one; at least 1
  int64_t piece_bytes = kPieceBytes;
};

struct SaveResult {
  std::filesystem::path path;  ///< FOLDER/step-N
  int64_t bytes = 0;           ///< of all ranks' data files
  double seconds = 0;
  std::string parameters_digest;
};

/// Collective. Either FOLDER/step-N appears complete, or an Error is thrown on every rank (environment_failed for a full
/// disk) and older checkpoints are as before. An existing step-N is replaced in one step.
SaveResult save_checkpoint(const SaveRequest& request, const CheckpointRanks& ranks);

}  // namespace foresail
