// Cuts the graph of a layer for tensor parallelism (Shoeybi et al. 2019, "Megatron-LM", section 3) and inserts the
// collectives. Nothing here knows an operator by name: a sum over a cut dimension is partial, and the gradient of what
// every rank holds but only its shard used is partial too.
#pragma once

#include "ops/graph.h"

namespace foresail {

/// Sizes of cut dimensions become this rank's (the vocabulary is padded up), head counts in attributes too; an
/// all-reduce follows each partial sum, an all-gather each row statistic of the loss. `tensor_parallel` >= 1.
Graph shard(const Graph& graph, int64_t tensor_parallel);

/// Size of a dimension on one of `tensor_parallel` ranks.
int64_t local_size(const Dim& dim, int64_t tensor_parallel);

}  // namespace foresail
