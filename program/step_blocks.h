// The blocks of a step that belong to no layer: zeroing, gradient reduction, norm and clipping, the optimizer, messages
// between stages, constants made at start.
#pragma once

#include <optional>
#include <set>

#include "program/stage_shape.h"

namespace foresail {

/// Zeroes the metrics record and, in training, all gradients.
Block begin_step_block(const StageShape& shape, const ArenaMap& arena, bool training);

/// Makes the constants; nothing if the model has none.
std::optional<Block> startup_block(const StageShape& shape, const ArenaMap& arena);

/// Sums over tp the gradients of replicated weights that saw only this rank's heads (of one unit).
std::optional<Block> tensor_reduce_block(const StageShape& shape, const LayerKind& kind,
                                         const std::set<int>& partial_weights, bool blocking);

/// Sums the gradient of the tied embedding over its two holders (called with the registers of the unit that holds it).
std::optional<Block> tied_reduce_block(const StageShape& shape, bool blocking);

/// Sums all gradients over data-parallel ranks; nothing if dp = 1.
std::optional<Block> data_reduce_block(const StageShape& shape, const ArenaMap& arena, bool blocking);

/// Adds a unit's squared gradients to the metrics record.
Block norm_block(const StageShape& shape, const LayerKind& kind, const ArenaMap& arena, const std::string& name);

/// Sums loss and squared norm over all ranks and, in training, derives the clip factor.
Block finish_metrics_block(const StageShape& shape, const ArenaMap& arena, bool training, bool blocking);

/// AdamW over a unit's flat ranges.
Block update_block(const StageShape& shape, const LayerKind& kind, const ArenaMap& arena, const std::string& name);

/// What a message block does, in this order.
struct MessageRequest {
  std::string name;
  std::vector<int32_t> wait_channels;
  InstructionKind kind = InstructionKind::wait_send;  ///< send, receive, or wait_send for none
  int32_t channel = 0, peer_stage = 0;
  Place place;  ///< of the hidden states or their gradient
};
LoweredBlock message_block(const StageShape& shape, const MessageRequest& request, bool blocking);

}  // namespace foresail
