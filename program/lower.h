// Turns placed graph nodes into the instructions of a block: buffers, queues, workspace.
#pragma once

#include <functional>

#include "program/block_layout.h"
#include "program/program.h"

namespace foresail {

/// Bytes of workspace that an operator needs on the target.
using WorkspaceOf = std::function<int64_t(const OpInstance&)>;

/// Which queues communication uses: the compute queue, or its own beside it.
struct QueuePolicy {
  bool inline_beside = false;  ///< collectives inside layers (tp, cp)
  bool bulk_beside = false;    ///< gradient reduction and parameter gathers
  bool pipeline_beside = false;

  Queue inline_queue() const { return inline_beside ? Queue::inline_comm : Queue::compute; }
  Queue bulk_queue() const { return bulk_beside ? Queue::bulk_comm : Queue::compute; }
  Queue pipeline_queue() const { return pipeline_beside ? Queue::pipeline : Queue::compute; }
};

struct LoweredBlock {
  Block block;
  int64_t scratch_bytes = 0;  ///< of register `scratch`
  int64_t carried_bytes = 0;  ///< of register `carried`
  std::map<int, Place> carried_places;
};

/// Places and lowers the nodes of `request` (its workspace field is filled here).
LoweredBlock lower_block(BlockRequest request, const WorkspaceOf& workspace_of, const QueuePolicy& queues);

/// A block whose buffers are placed already: gives each operator the workspace it needs, at `scratch_begin` of scratch.
LoweredBlock with_workspace(Block block, const WorkspaceOf& workspace_of, int64_t alignment, int64_t scratch_begin = 0);

}  // namespace foresail
