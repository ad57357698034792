// The blocks of each kind of layer in training: a transformer block for each recompute choice, the embedding, the head.
#pragma once

#include <set>

#include "program/autodiff.h"
#include "program/block_store.h"
#include "program/stage_shape.h"

namespace foresail {

/// A transformer block with one recompute choice.
struct LayerBlocks {
  int64_t region_bytes = 0;   ///< of a slot: the layer's input, then kept activations
  int64_t delayed_bytes = 0;  ///< of its delayed part: what the weight gradient reads of forward
  int64_t carried_bytes = 0;  ///< of a carried slot: what it reads of backward
  int32_t forward = -1, backward = -1;
  int32_t weight_gradient = -1;  ///< -1: backward is not split
};
LayerBlocks compile_layer(const StageShape& shape, const LayerKind& kind, const ArenaMap& arena,
                          const std::set<int>& dropped, bool split, BlockStore& store);

/// The graph of a kind of block with its derivatives, as `compile_layer` sees it: for recompute choices.
Differentiated differentiated_layer(const StageShape& shape, const LayerKind& kind);

int32_t compile_embedding_forward(const StageShape& shape, const ArenaMap& arena, BlockStore& store);
int32_t compile_embedding_backward(const StageShape& shape, const ArenaMap& arena, BlockStore& store);
/// Forward and backward of the head in one block, so that logits never outlive it.
int32_t compile_head(const StageShape& shape, const ArenaMap& arena, BlockStore& store);

/// Without backward: nothing is kept.
int32_t compile_layer_forward(const StageShape& shape, const LayerKind& kind, const ArenaMap& arena, BlockStore& store);
/// The head up to the loss, or only up to the logits.
int32_t compile_head_forward(const StageShape& shape, const ArenaMap& arena, bool with_loss, BlockStore& store);

}  // namespace foresail
