#include "program/block_store.h"

#include <utility>

namespace foresail {
namespace {

QueuePolicy policy_of(const Strategy& strategy, const Target& target) {
  const bool beside = strategy.overlap || !target.blocking_communication;
  return {.inline_beside = !target.blocking_communication, .bulk_beside = beside, .pipeline_beside = beside};
}

}  // namespace

BlockStore::BlockStore(const StageShape& shape, const Target& target, const WorkspaceOf& workspace_of)
    : workspace_of_([&target, &workspace_of](const OpInstance& op) -> int64_t {
        const auto listed = target.workspace_bytes.find(signature(op));
        if (listed != target.workspace_bytes.end()) return listed->second;
        return workspace_of ? workspace_of(op) : 0;
      }),
      queues_(policy_of(shape.strategy, target)),
      alignment_(shape.alignment) {}

int32_t BlockStore::add(LoweredBlock lowered) {
  blocks_.push_back(std::move(lowered));
  return static_cast<int32_t>(blocks_.size()) - 1;
}

int32_t BlockStore::add(Block block) { return add(with_workspace(std::move(block), workspace_of_, alignment_)); }

int32_t BlockStore::add_staged(LoweredBlock lowered) {
  return add(with_workspace(std::move(lowered.block), workspace_of_, alignment_, lowered.scratch_bytes));
}

int32_t BlockStore::lower(BlockRequest request) { return add(lower_block(std::move(request), workspace_of_, queues_)); }

std::vector<Block> BlockStore::take() {
  std::vector<Block> result;
  for (LoweredBlock& lowered : blocks_) result.push_back(std::move(lowered.block));
  return result;
}

}  // namespace foresail
