#include "program/units.h"

#include <algorithm>
#include <map>
#include <span>
#include <tuple>

#include "core/error.h"
#include "core/round_up.h"
#include "program/shard.h"

namespace foresail {
namespace {

bool is_cut(const Weight& weight) {
  return std::any_of(weight.dims.begin(), weight.dims.end(),
                     [](const Dim& dim) { return cut_by_tensor_parallelism(dim.name); });
}

bool is_of_experts(const Weight& weight) { return weight.dims[0].name == DimName::experts; }

bool holds_kv_heads(const Weight& weight) { return weight.dims[0].name == DimName::kv; }

int64_t local_elements(const Weight& weight, const Cut& cut) {
  int64_t elements = 1;
  for (const Dim& dim : weight.dims) elements *= local_size(dim, cut);
  return elements;
}

/// Gate and up are parts of one matrix, and each is padded like an FFN matrix.
Dim rows_of(const Weight& weight, const WeightPart& part) {
  const DimName name = weight.dims[is_of_experts(weight) ? 1 : 0].name;
  if (name == DimName::expert_gate_up) return {DimName::expert_ffn, part.rows};
  return {name == DimName::gate_up ? DimName::ffn : name, part.rows};
}

std::string layer_name(const std::string& pattern, int64_t layer) {
  const auto braces = pattern.find("{}");
  if (braces == std::string::npos) return pattern;
  return pattern.substr(0, braces) + std::to_string(layer) + pattern.substr(braces + 2);
}

/// What the weights of one flat range have in common; ranges follow each other in this order.
/// from_product, no decay, count rule, shared, partial, frozen
using Group = std::tuple<bool, bool, CountRule, bool, bool, bool>;

CountRule rule_of(const Weight& weight, bool second_holder, const Cut& cut) {
  if (second_holder) return CountRule::nobody;
  if (is_of_experts(weight)) return CountRule::every_expert_rank;
  if (holds_kv_heads(weight) && cut.kv_copies > 1) return CountRule::first_copy;
  return is_cut(weight) || cut.tp == 1 ? CountRule::every_tensor_rank : CountRule::tensor_rank_zero;
}

std::set<int> weights_of_products(const Graph& graph) {
  std::set<int> weights;
  for (const Node& node : graph.nodes) {
    const bool is_product = node.kind == OpKind::linear || node.kind == OpKind::expert_linear;
    if (node.collective != NodeCollective::none || !is_product) continue;
    weights.insert(graph.tensors[static_cast<size_t>(node.inputs.at(1))].weight);
  }
  return weights;
}

struct Interval {
  int64_t begin = 0, end = 0;
};

/// Rows or columns that rank `index` of a dimension cut into pieces of `local` holds; the last ranks may hold less.
Interval share_of(int64_t size, int64_t local, int64_t index) {
  const int64_t begin = std::min(size, index * local);
  return {begin, std::min(size, begin + local)};
}

/// Where a rank stands in the groups that cut weights.
struct RankPlace {
  int64_t tensor = 0;
  ExpertCoordinate expert;
};

/// What a rank counts as in the cut of a dimension.
int64_t position_in(const Dim& dim, const Cut& cut, const RankPlace& at) {
  if (dim.name == DimName::expert_ffn) return at.expert.etp;
  if (!cut_by_tensor_parallelism(dim.name)) return 0;
  return dim.name == DimName::kv ? at.tensor / cut.kv_copies : at.tensor;
}

/// True if a lower tensor rank holds the same.
bool is_replica(const Weight& weight, const Cut& cut, int64_t tensor_rank) {
  if (is_of_experts(weight)) return false;
  if (!is_cut(weight)) return tensor_rank > 0;
  return holds_kv_heads(weight) && tensor_rank % cut.kv_copies != 0;
}

/// Element `position` counted from the slice's first, as row and column; what lies in the padding of a row is the
/// begin of the next.
struct Cell {
  int64_t row = 0, column = 0;
};
Cell cell_at(const ParameterSlice& slice, int64_t position) {
  const int64_t rows = slice.row_end - slice.row_begin, columns = slice.column_end - slice.column_begin;
  if (position <= 0) return {0, 0};
  const Cell cell{position / slice.row_stride, position % slice.row_stride};
  if (cell.row >= rows) return {rows, 0};
  return cell.column < columns ? cell : Cell{cell.row + 1, 0};
}

/// The part of `slice` from cell (row, column) on, `rows` x `columns`.
ParameterSlice part_of(const ParameterSlice& slice, const Cell& from, int64_t rows, int64_t columns) {
  ParameterSlice part = slice;
  part.row_begin = slice.row_begin + from.row;
  part.row_end = part.row_begin + rows;
  part.column_begin = slice.column_begin + from.column;
  part.column_end = part.column_begin + columns;
  part.element_offset = slice.element_offset + from.row * slice.row_stride + from.column;
  return part;
}

/// The rectangles of `slice` whose elements lie in [begin, end): the rest of a row, whole rows, the begin of a row.
std::vector<ParameterSlice> cut_to(const ParameterSlice& slice, const Interval& interval) {
  const int64_t columns = slice.column_end - slice.column_begin;
  const Cell last = cell_at(slice, interval.end - slice.element_offset);
  Cell next = cell_at(slice, interval.begin - slice.element_offset);
  std::vector<ParameterSlice> parts;
  const auto take = [&](int64_t rows, int64_t width) {
    if (rows > 0 && width > 0) parts.push_back(part_of(slice, next, rows, width));
  };
  if (next.column > 0 && next.row < last.row) {
    take(1, columns - next.column);
    next = {next.row + 1, 0};
  }
  if (next.column == 0) {
    take(last.row - next.row, columns);
    next.row = std::max(next.row, last.row);
  }
  if (next.row == last.row) take(1, last.column - next.column);
  return parts;
}

}  // namespace

Unit place_weights(const Graph& sharded, const Placement& placement) {
  const std::set<int> products = weights_of_products(sharded);
  const auto in = [](const std::set<int>& set, int weight) { return set.count(weight) != 0; };
  std::map<Group, std::vector<int>> groups;
  for (int w = 0; w < static_cast<int>(sharded.weights.size()); ++w) {
    const Weight& weight = sharded.weights[static_cast<size_t>(w)];
    if (in(placement.held_elsewhere, w) || is_of_experts(weight) != placement.of_experts) continue;
    const CountRule rule = rule_of(weight, in(placement.second_holder, w), placement.cut);
    groups[{in(products, w), !weight.decay, rule, in(placement.shared, w), in(placement.partial, w), weight.frozen}]
        .push_back(w);
  }
  Unit unit;
  unit.offsets.assign(sharded.weights.size(), -1);
  for (const auto& [group, weights] : groups) {
    const auto& [from_product, no_decay, rule, shared, partial, frozen] = group;
    const int64_t begin = unit.elements;
    for (const int w : weights) {
      const Weight& weight = sharded.weights[static_cast<size_t>(w)];
      unit.offsets[static_cast<size_t>(w)] = unit.elements;
      unit.elements = round_up(unit.elements + local_elements(weight, placement.cut), kParameterAlignment);
    }
    unit.elements = begin + round_up(unit.elements - begin, kParameterAlignment * placement.shard_ranks);
    unit.ranges.push_back({begin, unit.elements, !no_decay, rule, from_product, partial, shared, frozen});
    if (!from_product) unit.products_begin = unit.elements;
  }
  return unit;
}

namespace {

/// The parts of a weight that this rank holds something of. Those of experts are listed expert by expert.
std::span<const WeightPart> held_parts(const Weight& weight, const Cut& cut, const RankPlace& at) {
  const std::span<const WeightPart> parts = weight.parts;
  if (!is_of_experts(weight)) return parts;
  const auto experts = static_cast<size_t>(weight.dims[0].size);
  ensure(parts.size() % experts == 0, "every expert has the same parts");
  const size_t held = static_cast<size_t>(local_size(weight.dims[0], cut)) * (parts.size() / experts);
  return parts.subspan(static_cast<size_t>(at.expert.ep) * held, held);
}

/// The slices of one weight that begins at `offset` in whole segments.
void append_slices(const Weight& weight, int64_t offset, int64_t layer, const Cut& cut, const RankPlace& at,
                   bool second_holder, std::vector<ParameterSlice>& slices) {
  const Dim column_dim = weight.dims.size() > 1 ? weight.dims.back() : Dim{DimName::fixed, 1};
  const int64_t local_columns = local_size(column_dim, cut);
  const Interval columns = share_of(column_dim.size, local_columns, position_in(column_dim, cut, at));
  for (const WeightPart& part : held_parts(weight, cut, at)) {
    const Dim row_dim = rows_of(weight, part);
    const int64_t local_rows = local_size(row_dim, cut);
    const Interval rows = share_of(part.rows, local_rows, position_in(row_dim, cut, at));
    ParameterSlice slice;
    slice.tensor = layer_name(part.tensor, layer);
    slice.shape =
        weight.dims.size() > 1 ? std::vector{part.tensor_rows, column_dim.size} : std::vector{part.tensor_rows};
    slice.row_begin = part.first_row + rows.begin;
    slice.row_end = part.first_row + rows.end;
    slice.column_begin = columns.begin;
    slice.column_end = columns.end;
    slice.element_offset = offset;
    slice.row_stride = local_columns;
    slice.init = weight.init;
    slice.decay = weight.decay;
    slice.transposed_in_file = part.transposed_in_file;
    slice.of_experts = is_of_experts(weight);
    slice.replicated = is_replica(weight, cut, at.tensor);
    slice.second_holder = second_holder;
    offset += local_rows * local_columns;
    if (slice.elements() > 0) slices.push_back(std::move(slice));
  }
}

}  // namespace

std::vector<ParameterSlice> slices_of(const Graph& sharded, const Unit& unit, int64_t unit_offset, int64_t layer,
                                      const Cut& cut, int64_t tensor_rank, const std::set<int>& second_holder) {
  std::vector<ParameterSlice> slices;
  for (size_t w = 0; w < sharded.weights.size(); ++w) {
    if (unit.offsets[w] < 0) continue;
    append_slices(sharded.weights[w], unit_offset + unit.offsets[w], layer, cut, {tensor_rank, {}},
                  second_holder.count(static_cast<int>(w)) != 0, slices);
  }
  return slices;
}

std::vector<ParameterSlice> expert_slices_of(const Graph& sharded, const Unit& unit, int64_t unit_offset, int64_t layer,
                                             const Cut& cut, const ExpertCoordinate& place) {
  std::vector<ParameterSlice> slices;
  for (size_t w = 0; w < sharded.weights.size(); ++w) {
    if (unit.offsets[w] < 0) continue;
    append_slices(sharded.weights[w], unit_offset + unit.offsets[w], layer, cut, {0, place}, false, slices);
  }
  return slices;
}

std::vector<ParameterSlice> shard_slices(const std::vector<ParameterSlice>& whole, const Unit& unit,
                                         int64_t unit_offset, int64_t shard_ranks, int64_t shard_rank,
                                         SliceCoordinates coordinates) {
  ensure(unit_offset % shard_ranks == 0, "units before this one are padded for the ranks that share them");
  std::vector<ParameterSlice> own;
  for (const ParameterSlice& slice : whole) {
    const int64_t place = slice.element_offset - unit_offset;
    const auto range = std::find_if(unit.ranges.begin(), unit.ranges.end(),
                                    [&](const FlatRange& r) { return r.begin <= place && place < r.end; });
    ensure(range != unit.ranges.end(), "every slice of a unit lies in one of its ranges");
    const int64_t share = (range->end - range->begin) / shard_ranks;
    const int64_t begin = unit_offset + range->begin + shard_rank * share;
    for (ParameterSlice part : cut_to(slice, {begin, begin + share})) {
      if (coordinates == SliceCoordinates::shard) {
        part.element_offset += (unit_offset + range->begin) / shard_ranks - begin;
      }
      own.push_back(std::move(part));
    }
  }
  return own;
}

}  // namespace foresail
