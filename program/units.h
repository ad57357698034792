// Where parameters live: a unit is the embedding, one layer or the head; its weights follow each other in an order that
// lets the optimizer and the norm walk few flat ranges. Every parameter-shaped segment (parameters, gradients, master,
// moments) uses the same element offsets. ZeRO cuts every range into equal shares; a shard of a segment is the same share
// of each of its ranges, one after the other, so its offsets are the whole ones divided by the ranks that share.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "ops/graph.h"
#include "program/program.h"
#include "program/shard.h"
#include "spec/mesh.h"

namespace foresail {

/// Every weight starts at a multiple of this many elements: 256 bytes, what GPUs align to, in the smallest element type.
inline constexpr int64_t kParameterAlignment = 128;

/// Its length is a multiple of kParameterAlignment x the ranks that share it.
struct FlatRange {
  int64_t begin = 0, end = 0;  ///< elements within the unit
  bool decay = false;
  CountRule count_rule = CountRule::every_tensor_rank;
  bool from_product = false;  ///< gradients come from linear_backward_weight, which zero-bubble schedules delay
  bool partial = false;       ///< gradients hold only this tensor rank's share
  bool shared = false;        ///< the table that embedding and head share
  bool frozen = false;  ///< keeps its values: its gradients, if there are any, are not reduced, counted or applied
};

struct Unit {
  std::vector<int64_t> offsets;  ///< by weight of the graph: elements within the unit; -1: held by another unit
  std::vector<FlatRange> ranges;
  int64_t products_begin = 0;  ///< weights of products follow the others
  int64_t elements = 0;        ///< padded
};

struct Placement {
  Cut cut;
  int64_t shard_ranks = 1;       ///< that share one copy of what ZeRO shards
  std::set<int> held_elsewhere;  ///< weights that another unit of this stage holds (a tied head beside its embedding)
  std::set<int> second_holder;   ///< weights that an earlier stage holds too: not counted in the norm
  std::set<int> shared;          ///< weights that embedding and head share: a range of their own
  std::set<int> partial;         ///< weights whose gradients hold only this tensor rank's share
  bool of_experts = false;       ///< only weights of experts, else only the others
};

Unit place_weights(const Graph& sharded, const Placement& placement);

/// The rectangles that rank `tensor_rank` holds of the weights of one unit at `unit_offset` (elements) of whole segments;
/// `layer` fills "{}". Padding is in no slice.
std::vector<ParameterSlice> slices_of(const Graph& sharded, const Unit& unit, int64_t unit_offset, int64_t layer,
                                      const Cut& cut, int64_t tensor_rank, const std::set<int>& second_holder);

/// The same for a unit of experts and a rank at `place` of their mesh.
std::vector<ParameterSlice> expert_slices_of(const Graph& sharded, const Unit& unit, int64_t unit_offset, int64_t layer,
                                             const Cut& cut, const ExpertCoordinate& place);

/// Whether offsets count in a segment that holds only a shard, or in a whole one.
enum class SliceCoordinates : uint8_t { shard, whole };

/// What `shard_rank` of `shard_ranks` holds of the slices of the unit at `unit_offset` (elements of whole segments): its
/// share of a flat range is at most three rectangles of a slice.
std::vector<ParameterSlice> shard_slices(const std::vector<ParameterSlice>& whole, const Unit& unit,
                                         int64_t unit_offset, int64_t shard_ranks, int64_t shard_rank,
                                         SliceCoordinates coordinates = SliceCoordinates::shard);

}  // namespace foresail
