// The blocks of a Program while it is put together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/lower.h"
#include "program/stage_shape.h"

namespace foresail {

class BlockStore {
 public:
  BlockStore(const StageShape& shape, const Target& target, const WorkspaceOf& workspace_of);

  int32_t add(LoweredBlock lowered);
  /// Gives operators the workspace they need.
  int32_t add(Block block);
  /// The same for a block with temporaries of its own at the begin of scratch.
  int32_t add_staged(LoweredBlock lowered);
  int32_t lower(BlockRequest request);

  const LoweredBlock& at(int32_t block) const { return blocks_.at(static_cast<size_t>(block)); }
  const QueuePolicy& queues() const { return queues_; }
  std::vector<Block> take();

 private:
  WorkspaceOf workspace_of_;
  QueuePolicy queues_;
  int64_t alignment_;
  std::vector<LoweredBlock> blocks_;
};

}  // namespace foresail
