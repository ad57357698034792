// Replaces chains of operators by fused ones of the op table, so that no activation crosses memory twice without need.
// Fused and unfused graphs compute the same.
#pragma once

#include "program/autodiff.h"

namespace foresail {

/// Before differentiation: residual add + norm, column-parallel bias + GELU.
void fuse_forward(Graph& graph);

/// After differentiation: the sum of a residual gradient and a norm's gradient becomes the norm's addend; cross-entropy
/// statistics and gradient become one pass where nothing is gathered between them.
void fuse_backward(Differentiated& layer);

}  // namespace foresail
