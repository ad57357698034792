#include "program/units.h"

#include <algorithm>

#include "core/error.h"
#include "program/shard.h"

namespace foresail {
namespace {

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

bool is_cut(const Weight& weight) {
  return std::any_of(weight.dims.begin(), weight.dims.end(),
                     [](const Dim& dim) { return cut_by_tensor_parallelism(dim.name); });
}

int64_t local_elements(const Weight& weight, int64_t tensor_parallel) {
  int64_t elements = 1;
  for (const Dim& dim : weight.dims) elements *= local_size(dim, tensor_parallel);
  return elements;
}

std::string layer_name(const std::string& pattern, int64_t layer) {
  const auto braces = pattern.find("{}");
  if (braces == std::string::npos) return pattern;
  return pattern.substr(0, braces) + std::to_string(layer) + pattern.substr(braces + 2);
}

struct Group {
  bool decay;
  CountRule rule;
};

/// Order of the flat ranges: what decays first, so that the optimizer walks two ranges.
constexpr Group kGroups[] = {
    {true, CountRule::every_tensor_rank},  {true, CountRule::tensor_rank_zero},  {true, CountRule::nobody},
    {false, CountRule::every_tensor_rank}, {false, CountRule::tensor_rank_zero}, {false, CountRule::nobody},
};

CountRule rule_of(const Weight& weight, bool second_holder, int64_t tensor_parallel) {
  if (second_holder) return CountRule::nobody;
  return is_cut(weight) || tensor_parallel == 1 ? CountRule::every_tensor_rank : CountRule::tensor_rank_zero;
}

}  // namespace

Unit place_weights(const Graph& sharded, int64_t tensor_parallel, const std::set<int>& held_elsewhere,
                   const std::set<int>& second_holder) {
  Unit unit;
  unit.offsets.assign(sharded.weights.size(), -1);
  for (const Group& group : kGroups) {
    const int64_t begin = unit.elements;
    for (size_t w = 0; w < sharded.weights.size(); ++w) {
      const Weight& weight = sharded.weights[w];
      const int index = static_cast<int>(w);
      if (held_elsewhere.count(index) != 0 || weight.decay != group.decay) continue;
      if (rule_of(weight, second_holder.count(index) != 0, tensor_parallel) != group.rule) continue;
      unit.offsets[w] = unit.elements;
      unit.elements = round_up(unit.elements + local_elements(weight, tensor_parallel), kParameterAlignment);
    }
    if (unit.elements > begin) unit.ranges.push_back({begin, unit.elements, group.decay, group.rule});
  }
  return unit;
}

std::vector<ParameterSlice> slices_of(const Graph& sharded, const Unit& unit, int64_t unit_offset, int64_t layer,
                                      int64_t tensor_parallel, int64_t tensor_rank,
                                      const std::set<int>& second_holder) {
  std::vector<ParameterSlice> slices;
  for (size_t w = 0; w < sharded.weights.size(); ++w) {
    if (unit.offsets[w] < 0) continue;
    const Weight& weight = sharded.weights[w];
    const bool rows_cut = cut_by_tensor_parallelism(weight.dims[0].name);
    const int64_t columns = weight.dims.size() > 1 ? weight.dims[1].size : 1;
    const int64_t local_columns = weight.dims.size() > 1 ? local_size(weight.dims[1], tensor_parallel) : 1;
    int64_t offset = unit_offset + unit.offsets[w];
    for (const WeightPart& part : weight.parts) {
      const int64_t local_rows = local_size({weight.dims[0].name, part.rows}, tensor_parallel);
      ParameterSlice slice;
      slice.tensor = layer_name(part.tensor, layer);
      slice.shape = weight.dims.size() > 1 ? std::vector{part.tensor_rows, columns} : std::vector{part.tensor_rows};
      const int64_t first = rows_cut ? std::min(part.rows, tensor_rank * local_rows) : 0;
      slice.row_begin = part.first_row + first;
      slice.row_end = part.first_row + std::min(part.rows, first + local_rows);
      slice.column_begin = local_columns < columns ? tensor_rank * local_columns : 0;
      slice.column_end = slice.column_begin + local_columns;
      slice.element_offset = offset;
      slice.init = weight.init;
      slice.decay = weight.decay;
      slice.transposed_in_file = part.transposed_in_file;
      slice.replicated = !is_cut(weight);
      slice.second_holder = second_holder.count(static_cast<int>(w)) != 0;
      offset += local_rows * local_columns;
      if (slice.elements() > 0) slices.push_back(std::move(slice));
    }
  }
  return slices;
}

}  // namespace foresail
