// Where parameters live: a unit is the embedding, one layer or the head; its weights follow each other in an order that
// lets the optimizer and the norm walk few flat ranges. Every parameter-shaped segment (parameters, gradients, master,
// moments) uses the same element offsets.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "ops/graph.h"
#include "program/program.h"

namespace foresail {

/// Every weight starts at a multiple of this many elements: 256 bytes, what GPUs align to, in the smallest element type.
inline constexpr int64_t kParameterAlignment = 128;

struct FlatRange {
  int64_t begin = 0, end = 0;  ///< elements within the unit
  bool decay = false;
  CountRule count_rule = CountRule::every_tensor_rank;
};

struct Unit {
  std::vector<int64_t> offsets;  ///< by weight of the graph: elements within the unit; -1: held by another unit
  std::vector<FlatRange> ranges;
  int64_t elements = 0;  ///< padded
};

/// `held_elsewhere`: weights that another unit of this stage holds (a tied head beside its embedding). `second_holder`:
/// weights that an earlier stage holds too (a tied head on another stage): not counted in the norm.
Unit place_weights(const Graph& sharded, int64_t tensor_parallel, const std::set<int>& held_elsewhere,
                   const std::set<int>& second_holder);

/// The rectangles that rank `tensor_rank` holds of the weights of one unit at `unit_offset` (elements); `layer` fills "{}".
std::vector<ParameterSlice> slices_of(const Graph& sharded, const Unit& unit, int64_t unit_offset, int64_t layer,
                                      int64_t tensor_parallel, int64_t tensor_rank, const std::set<int>& second_holder);

}  // namespace foresail
