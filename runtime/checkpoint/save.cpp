#include "runtime/checkpoint/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "core/digest.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "runtime/checkpoint/folder.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/io/posix_file.h"

namespace foresail {
namespace {

// One rectangle of one quantity, as it lies in the arena.
struct OwnedSlab {
  StoredTensor tensor;  ///< with its one slab
  const std::byte* data = nullptr;
  int64_t row_stride = 0;  ///< elements

  const Slab& slab() const { return tensor.slabs.front(); }
  Slab& slab() { return tensor.slabs.front(); }
};

bool is_whole(const StoredTensor& tensor, const Rectangle& part) {
  return part == Rectangle{0, tensor.rows(), 0, tensor.columns()};
}

OwnedSlab slab_of(const ParameterSlice& slice, const SegmentView& segment) {
  OwnedSlab owned;
  owned.tensor.tensor = slice.tensor;
  owned.tensor.quantity = segment.quantity;
  owned.tensor.shape = slice.shape;
  owned.tensor.dtype = segment.dtype;
  owned.data = begin_of(segment, slice);
  owned.row_stride = slice.row_stride;
  Slab slab;
  slab.part = rectangle_of(slice);
  slab.name = owned.tensor.full_name();
  if (!is_whole(owned.tensor, slab.part)) {
    slab.name += fmt::format("[{}:{},{}:{}]", slab.part.row_begin, slab.part.row_end, slab.part.column_begin,
                             slab.part.column_end);
  }
  owned.tensor.slabs.push_back(std::move(slab));
  return owned;
}

// What this rank writes. Collective.
std::vector<OwnedSlab> owned_slabs(const CheckpointRanks& ranks, std::span<const SegmentView> segments) {
  std::vector<OwnedSlab> slabs;
  for (const SegmentView& segment : segments) {
    const std::vector<bool> owned = owned_slices(ranks, segment.slices);
    for (size_t i = 0; i < segment.slices.size(); ++i) {
      if (owned[i]) slabs.push_back(slab_of(segment.slices[i], segment));
    }
  }
  return slabs;
}

std::vector<TensorToWrite> tensors_to_write(const std::vector<OwnedSlab>& slabs) {
  std::vector<TensorToWrite> tensors;
  for (const OwnedSlab& owned : slabs) {
    const Slab& slab = owned.slab();
    const auto shape = owned.tensor.shape.size() > 1 ? std::vector{slab.part.rows(), slab.part.columns()}
                                                     : std::vector{slab.part.rows()};
    tensors.push_back({slab.name, std::string(safetensors_type(owned.tensor.dtype)), shape});
  }
  return tensors;
}

// Bytes [begin, begin + bytes) of the rectangle, row-major: the arena's own where its rows follow each other without a gap,
// otherwise copied together in `staging`.
std::span<const std::byte> piece_of(const OwnedSlab& owned, int64_t begin, int64_t bytes,
                                    std::vector<std::byte>& staging) {
  const Rectangle& part = owned.slab().part;
  if (owned.row_stride == part.columns() || part.rows() == 1) return {owned.data + begin, static_cast<size_t>(bytes)};
  const int64_t element_bytes = size_of(owned.tensor.dtype);
  const int64_t row_bytes = part.columns() * element_bytes, stride_bytes = owned.row_stride * element_bytes;
  staging.resize(static_cast<size_t>(bytes));
  for (int64_t done = 0; done < bytes;) {
    const int64_t row = (begin + done) / row_bytes, within = (begin + done) % row_bytes;
    const int64_t count = std::min(row_bytes - within, bytes - done);
    std::memcpy(staging.data() + done, owned.data + row * stride_bytes + within, static_cast<size_t>(count));
    done += count;
  }
  return staging;
}

// Writes piece by piece: each piece is digested from the arena's bytes before they go to the file, so that what is verified
// later is what the run held.
void write_slab(SafetensorsWriter& writer, size_t index, OwnedSlab& owned, int64_t piece_bytes,
                std::vector<std::byte>& staging) {
  Slab& slab = owned.slab();
  const TensorEntry& entry = writer.entry(index);
  slab.offset = entry.offset;
  for (int64_t begin = 0; begin < entry.bytes; begin += piece_bytes) {
    const std::span<const std::byte> piece =
        piece_of(owned, begin, std::min(piece_bytes, entry.bytes - begin), staging);
    slab.pieces.push_back(digest_of(piece));
    writer.write(index, begin, piece);
  }
}

std::string header_digest_of(const std::filesystem::path& path, int64_t header_bytes) {
  std::string header(static_cast<size_t>(header_bytes), '\0');
  PosixFile::open_to_read(path).read_at(0, std::as_writable_bytes(std::span(header)));
  return digest_of(header);
}

RankPart write_rank_file(std::vector<OwnedSlab> slabs, int64_t piece_bytes, const std::filesystem::path& folder,
                         int rank) {
  RankPart part;
  if (slabs.empty()) return part;
  const std::string name = fmt::format("rank-{:05d}.safetensors", rank);
  const std::map<std::string, std::string> metadata = {{"format", "foresail.checkpoint/1"}};
  SafetensorsWriter writer(folder / name, tensors_to_write(slabs), metadata);
  int64_t header_bytes = writer.entry(0).offset, data_bytes = 0;
  std::vector<std::byte> staging;
  for (size_t i = 0; i < slabs.size(); ++i) {
    write_slab(writer, i, slabs[i], piece_bytes, staging);
    const StoredTensor& tensor = slabs[i].tensor;
    part.sums.push_back(
        sum_elements(slabs[i].data, tensor.dtype, slabs[i].slab().part, slabs[i].row_stride, tensor.columns()));
    header_bytes = std::min(header_bytes, writer.entry(i).offset);
    data_bytes += writer.entry(i).bytes;
    part.tensors.push_back(tensor);
  }
  writer.finish();
  part.files.push_back({name, header_bytes + data_bytes, header_digest_of(folder / name, header_bytes)});
  return part;
}

Manifest join(const std::vector<std::string>& texts, const SaveRequest& request, const std::string& source) {
  std::vector<RankPart> parts;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    parts.push_back(rank_part_from_json(texts[rank], fmt::format("slabs of rank {}", rank)));
  }
  return join_parts(parts, request.state, request.piece_bytes, source);
}

// An old checkpoint that cannot be removed costs disk space, not the run.
void prune_or_warn(const SaveRequest& request) {
  try {
    prune_checkpoints(request.folder, std::max<int64_t>(1, request.keep));
  } catch (const Error& error) {
    log_warning("old checkpoints stay: {}", error.what());
  }
}

}  // namespace

std::byte* begin_of(const SegmentView& segment, const ParameterSlice& slice) {
  ensure(slice.row_stride >= slice.column_end - slice.column_begin, "rows of a slice do not overlap");
  return segment.data + slice.element_offset * size_of(segment.dtype);
}

std::vector<SegmentView> segment_views(const Program& program, const RankSlices& slices, std::byte* arena) {
  const ArenaMap& map = program.arena;
  const Precision& precision = program.precision;
  std::vector<SegmentView> views;
  const auto add = [&](Quantity quantity, DType dtype, const Segment& segment, std::span<const ParameterSlice> held) {
    views.push_back({quantity, dtype, arena + segment.offset, held});
  };
  add(Quantity::parameter, precision.parameter, map.parameters, slices.parameters);
  if (precision.master_copy) add(Quantity::master, DType::f32, map.master, slices.state);
  add(Quantity::moment1, precision.moment, map.moment1, slices.state);
  add(Quantity::moment2, precision.moment, map.moment2, slices.state);
  return views;
}

SaveResult save_checkpoint(const SaveRequest& request, const CheckpointRanks& ranks) {
  const auto start = std::chrono::steady_clock::now();
  const std::filesystem::path target = checkpoint_path(request.folder, request.state.step);
  const std::filesystem::path aside = target.string() + ".tmp";
  RemoveOnFailure cleanup(ranks.rank() == 0 ? aside : std::filesystem::path());
  first_rank_does(ranks, [&] {
    create_folder(request.folder);
    remove_leftovers(request.folder);
    create_folder(aside);
    return std::string();
  });
  std::vector<OwnedSlab> slabs = owned_slabs(ranks, request.segments);
  const std::vector<std::string> parts = all_do(ranks, [&] {
    return rank_part_to_json(write_rank_file(std::move(slabs), request.piece_bytes, aside, ranks.rank()));
  });
  SaveResult result{target, 0, 0, {}};
  const std::string summary = first_rank_does(ranks, [&] {
    const Manifest manifest = join(parts, request, aside.string());
    write_file_atomically(aside / kManifestName, manifest_to_json(manifest));  // syncs the folder too
    publish_checkpoint(aside, target);
    prune_or_warn(request);
    return std::to_string(manifest.data_bytes()) + ' ' + manifest.parameters_digest;
  });
  cleanup.release();
  const size_t space = summary.find(' ');
  result.bytes = std::stoll(summary.substr(0, space));
  result.parameters_digest = summary.substr(space + 1);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace foresail
