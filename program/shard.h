// Cuts the graph of a layer for tensor, sequence and context parallelism and inserts the collectives (Shoeybi et al.
// 2019, "Megatron-LM", section 3; Korthikanti et al. 2022 for sequence parallelism). Tensor parallelism knows no operator
// by name: a sum over a cut dimension is partial, and the gradient of what every rank holds but only its shard used is
// partial too.
#pragma once

#include "ops/graph.h"
#include "spec/strategy.h"

namespace foresail {

/// How the ranks that run one layer together share it.
struct Cut {
  int64_t tp = 1, cp = 1;
  bool sequence_parallel = false;  ///< between cut regions a tensor rank holds its share of the rows
  ContextKind context = ContextKind::ring;
  int64_t kv_copies = 1;    ///< tensor ranks that hold the same KV head
  int64_t ep = 1, etp = 1;  ///< ranks that share a layer's experts, ranks that share each expert
};

/// The graph of one rank. `graph` is what models/ built for the same context-parallel degree and KV copies. Sizes of cut
/// dimensions become this rank's (vocabulary and FFN are padded up), head counts in attributes too. An all-reduce follows
/// each partial sum, an all-gather each row statistic of the loss; with sequence parallelism partial sums are
/// reduce-scattered over their rows, which are gathered again where a cut operator reads them. All-to-all context
/// parallelism exchanges heads for positions around attention; of ring attention one node with context_parallel = cp is
/// left (program/ring expands it after differentiation).
Graph shard(const Graph& graph, const Cut& cut);

/// Size of a dimension on one rank; rows are not considered.
int64_t local_size(const Dim& dim, const Cut& cut);

}  // namespace foresail
