// Context parallelism by all-to-all (Jacobs et al. 2023, "DeepSpeed-Ulysses"): around attention ranks exchange the heads
// of their positions for the positions of their heads, so that each attends over whole sequences for its share of heads.
#pragma once

#include <cstdint>

#include "ops/graph.h"

namespace foresail {

/// Surrounds the attention operators of a layer's graph (one fused node, or a chain that stores scores) by
///     heads_split, all_to_all_context, rows_merge, <attention>, rows_split, all_to_all_context, heads_merge
/// over `context_parallel` >= 2 ranks, which must divide this rank's query and KV heads.
void exchange_heads(Graph& graph, int64_t context_parallel);

}  // namespace foresail
