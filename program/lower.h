// Turns placed graph nodes into the instructions of a block: buffers and queues.
#pragma once

#include <functional>

#include "program/block_layout.h"
#include "program/program.h"

namespace foresail {

/// Bytes of workspace that an operator needs on the target.
using WorkspaceOf = std::function<int64_t(const OpInstance&)>;

struct LoweredBlock {
  Block block;
  /// Buffers whose offset counts from the start of the scratch segment until `relocate_scratch`.
  std::vector<bool> in_scratch;
  int64_t scratch_end = 0;
};

/// Places and lowers the nodes of `request` (its workspace field is filled here). With `blocking`, collectives run on the
/// compute queue, otherwise beside it (dependencies.h says what then waits for what).
LoweredBlock lower_block(BlockRequest request, const WorkspaceOf& workspace_of, bool blocking);

/// A block whose buffers are placed already: gives each operator the workspace it needs, at the start of scratch.
LoweredBlock with_workspace(Block block, const WorkspaceOf& workspace_of, int64_t alignment);

/// Adds the start of the scratch segment to every scratch buffer.
void relocate_scratch(LoweredBlock& lowered, int64_t scratch_offset);

}  // namespace foresail
