// Ring attention (Liu et al. 2023): keys and values of every context rank travel around the ring, each rank attends with
// its queries to those that it has. Sharding and differentiation see one attention operator; this pass puts the steps in
// its place, forward and backward.
#pragma once

#include <cstdint>

#include "program/autodiff.h"

namespace foresail {

/// Replaces each attention (and, after differentiation, attention_backward) over `context_parallel` ranks by its steps.
/// What is saved stays: qkv, o and lse. Backward sends the gradients of keys and values along with them; one more shift
/// brings them home. Does nothing to attention over whole sequences.
void expand_ring(Differentiated& layer, int64_t context_parallel);
void expand_ring(Graph& forward, int64_t context_parallel);

}  // namespace foresail
