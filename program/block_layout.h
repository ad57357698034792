// Gives every tensor of a block its place: tensors that may share a buffer are merged, the rest is packed by lifetime
// into the holes that dead kept activations leave and into scratch memory.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ops/graph.h"
#include "program/program.h"

namespace foresail {

/// A place in one of the address ranges that a block sees.
struct Place {
  Register base = Register::absolute;
  int64_t offset = 0;
  MemoryKind memory = MemoryKind::scratch;
  int64_t share_stride = 0;  ///< of a buffer's shares: Buffer::shard_stride
  ShareOf share_of = ShareOf::data;
  bool operator==(const Place&) const = default;
};

/// A node to run, by index into the graph, and what its time counts as.
struct PlannedNode {
  int node = 0;
  TimeKind time = TimeKind::compute;
};

struct BlockRequest {
  std::string name;
  const Graph* graph = nullptr;
  std::vector<PlannedNode> nodes;
  /// Tensors with a given place: weights, layer inputs and outputs, kept activations, data. Those that no node of this
  /// block writes hold a value from the start.
  std::map<int, Place> pinned;
  /// Pinned tensors whose value must survive the block.
  std::set<int> live_out;
  /// Tensors without a given place whose value must survive the block until the micro-batch's weight gradient.
  std::set<int> carried;
  /// Bytes of this layer's region of the slot (register `saved`): dead parts of it serve as scratch. 0 in forward.
  int64_t hole_bytes = 0;
  int64_t alignment = 64;
  std::map<int, int64_t> workspace;  ///< bytes by position in `nodes`
};

struct PlacedBlock {
  std::map<int, Place> places;            ///< by tensor
  std::map<int, Place> workspace_places;  ///< by position in `nodes`
  int64_t scratch_end = 0;                ///< bytes of scratch that this block needs
  int64_t carried_end = 0;                ///< bytes of the carried region
};

PlacedBlock place_block(const BlockRequest& request);

}  // namespace foresail
