#include "tests/checkpoint/layouts.h"

#include <algorithm>

namespace foresail {
namespace {

constexpr int64_t kAlignment = 4, kLayers = 5;

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
int64_t share_of(int64_t size, int64_t parts) { return (size + parts - 1) / parts; }

/// A weight in a unit: rows of `stride` elements of which the slice's rectangle may fill fewer.
struct Placed {
  ParameterSlice slice;  ///< element_offset: within the unit
  int64_t rows = 0;      ///< padding included
};

/// The embedding, a layer or the head. Its flat ranges are each a multiple of the shards.
struct UnitLayout {
  std::vector<Placed> weights;
  std::vector<int64_t> range_ends;
  int64_t elements = 0;

  void add(const std::string& tensor, std::vector<int64_t> shape, Rectangle part, int64_t rows, int64_t stride,
           bool second_holder = false) {
    ParameterSlice slice;
    slice.tensor = tensor;
    slice.shape = std::move(shape);
    slice.row_begin = part.row_begin, slice.row_end = part.row_end;
    slice.column_begin = part.column_begin, slice.column_end = part.column_end;
    slice.row_stride = stride;
    slice.element_offset = elements;
    slice.second_holder = second_holder;
    weights.push_back({slice, rows});
    elements = round_up(elements + rows * stride, kAlignment);
  }
  void end_range(int shards) {
    elements = round_up(elements, shards * kAlignment);
    range_ends.push_back(elements);
  }
};

/// The part of a weight in flat elements [begin, end) of its unit, as rectangles: a partial row, whole rows, a partial row.
/// The element at `begin` lies at `offset` of the segment.
void add_flat_part(const Placed& weight, int64_t begin, int64_t end, int64_t offset,
                   std::vector<ParameterSlice>& slices) {
  const int64_t stride = weight.slice.row_stride, first = weight.slice.element_offset;
  int64_t at = std::max(begin, first);
  const int64_t stop = std::min(end, first + weight.rows * stride);
  while (at < stop) {
    const int64_t row = (at - first) / stride, column = (at - first) % stride;
    const int64_t whole_rows = column == 0 ? (stop - at) / stride : 0;
    const int64_t count = whole_rows > 0 ? whole_rows * stride : std::min(stride - column, stop - at);
    ParameterSlice slice = weight.slice;
    slice.row_begin += row;
    slice.row_end = std::min(slice.row_end, slice.row_begin + std::max<int64_t>(1, whole_rows));
    if (whole_rows == 0) {
      slice.column_end = std::min(slice.column_end, slice.column_begin + column + count);
      slice.column_begin += column;
    }
    slice.element_offset = offset + at - begin;
    if (slice.row_begin < slice.row_end && slice.column_begin < slice.column_end) slices.push_back(slice);
    at += count;
  }
}

/// Appends a unit to a segment: all of it, or one shard.
void append(const UnitLayout& unit, int shards, int shard, std::vector<ParameterSlice>& slices, int64_t& elements) {
  int64_t range_begin = 0, offset = elements;
  for (const int64_t range_end : unit.range_ends) {
    const int64_t part = (range_end - range_begin) / shards, begin = range_begin + shard * part;
    for (const Placed& weight : unit.weights) add_flat_part(weight, begin, begin + part, offset, slices);
    offset += part;
    range_begin = range_end;
  }
  elements = offset + kAlignment;  // a gap that belongs to nobody
}

struct Cut {
  int64_t begin, end, padded;
};
Cut cut(int64_t size, int tp, int t) {
  const int64_t local = share_of(size, tp);
  return {std::min(size, t * local), std::min(size, (t + 1) * local), local};
}

UnitLayout embedding_unit(const Layout& layout, int t) {
  UnitLayout unit;
  const Cut vocabulary = cut(23, layout.tp, t);
  unit.add("position.weight", {7, 8}, {0, 7, 0, 8}, 7, 8);
  unit.add("embedding.weight", {23, 8}, {vocabulary.begin, vocabulary.end, 0, 8}, vocabulary.padded, 8);
  unit.end_range(layout.shard());
  return unit;
}

UnitLayout layer_unit(const Layout& layout, int64_t layer, int t) {
  UnitLayout unit;
  const std::string prefix = "layer." + std::to_string(layer) + ".";
  const Cut heads = cut(4, layout.tp, t), columns = cut(10, layout.tp, t);
  for (int64_t part = 0; part < 3; ++part) {
    unit.add(prefix + "attention.weight", {12, 8}, {part * 4 + heads.begin, part * 4 + heads.end, 0, 8}, heads.padded,
             8);
  }
  const int copies = layout.tp % 2 == 0 && layout.tp > 2 ? layout.tp / 2 : 1;  // ranks that hold the same KV head
  const Cut kv_heads = cut(2, layout.tp / copies, t / copies);
  unit.add(prefix + "key.weight", {4, 8}, {2 * kv_heads.begin, 2 * kv_heads.end, 0, 8}, 2 * kv_heads.padded, 8);
  unit.add(prefix + "projection.weight", {8, 10}, {0, 8, columns.begin, columns.end}, 8, columns.padded);
  unit.end_range(layout.shard());
  unit.add(prefix + "norm.weight", {8}, {0, 8, 0, 1}, 8, 1);
  unit.end_range(layout.shard());
  return unit;
}

UnitLayout head_unit(const Layout& layout, int t, bool holds_embedding) {
  UnitLayout unit;
  const Cut vocabulary = cut(23, layout.tp, t);
  if (!holds_embedding) {
    unit.add("embedding.weight", {23, 8}, {vocabulary.begin, vocabulary.end, 0, 8}, vocabulary.padded, 8, true);
    unit.end_range(layout.shard());
  }
  unit.add("norm.weight", {8}, {0, 8, 0, 1}, 8, 1);
  unit.end_range(layout.shard());
  return unit;
}

std::vector<UnitLayout> units_of(const Layout& layout, int stage, int t) {
  std::vector<UnitLayout> units;
  const int last = layout.pp * layout.virtual_stages - 1;
  for (int chunk = 0; chunk < layout.virtual_stages; ++chunk) {
    const int virtual_stage = layout.turned && chunk == 1 ? 2 * layout.pp - 1 - stage : chunk * layout.pp + stage;
    if (virtual_stage == 0) units.push_back(embedding_unit(layout, t));
    const int64_t begin = kLayers * virtual_stage / (last + 1), end = kLayers * (virtual_stage + 1) / (last + 1);
    for (int64_t layer = begin; layer < end; ++layer) units.push_back(layer_unit(layout, layer, t));
    if (virtual_stage == last) units.push_back(head_unit(layout, t, stage == 0));
  }
  return units;
}

}  // namespace

RankMemory memory_of(const Layout& layout, int rank, DType dtype) {
  RankMemory memory;
  memory.dtype = dtype;
  const int t = rank % layout.tp, data_rank = rank / layout.tp % layout.data, stage = rank / layout.tp / layout.data;
  const int shards = layout.shard(), shard = data_rank % shards;
  for (const UnitLayout& unit : units_of(layout, stage, t)) {
    const bool cut_parameters = layout.zero_stage == 3;
    append(unit, cut_parameters ? shards : 1, cut_parameters ? shard : 0, memory.slices, memory.elements);
    append(unit, shards, shard, memory.state, memory.state_elements);
  }
  return memory;
}

}  // namespace foresail
