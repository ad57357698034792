// The blocks of a step that belong to no layer and no unit: zeroing, clipping, messages between stages, constants made at
// start.
#pragma once

#include <optional>
#include <vector>

#include "program/lower.h"
#include "program/stage_shape.h"

namespace foresail {

/// Zeroes the metrics record and, in training, the gradients that outlive a micro-batch.
Block begin_step_block(const StageShape& shape, const ArenaMap& arena, bool training);

/// Makes the constants; nothing if the model has none.
std::optional<Block> startup_block(const StageShape& shape, const ArenaMap& arena);

/// Sums loss and squared norm over all ranks and, in training, derives the clip factor. Context-parallel and data ranks
/// count their own tokens.
Block finish_metrics_block(const StageShape& shape, const ArenaMap& arena, bool training, const QueuePolicy& queues);

/// Hidden states or their gradient between virtual stages. Channels: 2 * (virtual stage before the boundary) + 0 or 1.
struct Message {
  const char* name = "";
  InstructionKind kind{};  ///< send or receive
  int32_t channel = 0, peer_stage = 0;
  Place place;
};
Block message_block(const StageShape& shape, const Message& message, const QueuePolicy& queues);
/// Waits for the sends of `channels`, but for the latest `keep` of each.
Block wait_block(const std::vector<int32_t>& channels, int32_t keep, const QueuePolicy& queues);

/// Hidden states from one place to another on the same rank.
Block copy_block(const StageShape& shape, const Place& from, const Place& to);

}  // namespace foresail
