// Expert parallelism of a layer's graph: experts become this rank's, their rows travel to the ranks that hold them and
// back (Lepikhin et al. 2021, "GShard"), and ranks that share an expert gather the rows of each other.
#pragma once

#include "ops/graph.h"
#include "program/shard.h"

namespace foresail {

/// Rows of room for one pair of ranks: `bound` times the mean number of the `rows` x experts_per_token copies that go to
/// one of `ranks`, never more than can go there. `bound` 0: as many as can.
int64_t expert_capacity(int64_t rows, int64_t experts, int64_t experts_per_token, int64_t ranks, double bound);

/// True if more rows than there is room for can be sent to a rank.
bool can_overflow(int64_t rows, int64_t experts, int64_t experts_per_token, int64_t ranks, double bound);

/// `sharded` is a layer's graph after `shard`; a graph without experts stays as it is. Behind dispatch, rows and counts are
/// exchanged over the expert group and gathered over expert_tensor; before combine the results are summed over
/// expert_tensor and sent back. Statistics of routers are summed over the ranks that share the sequences. `bound` as in
/// expert_capacity.
void cut_experts(Graph& sharded, const Cut& cut, double bound);

}  // namespace foresail
