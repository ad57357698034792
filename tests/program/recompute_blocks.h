// Blocks to try recompute on: those of the small models, and random ones; and what is true of any replay.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "models/model_spec.h"
#include "program/recompute_solver.h"
#include "program/shard.h"

namespace foresail::testing {

struct NamedBlock {
  std::string name;
  Differentiated layer;
};

/// The block of a model as one rank of a cut runs it.
Differentiated trained_block(const ModelSpec& model, int64_t sequence_length, bool fused, bool unfused_attention,
                             const Cut& cut = {});

/// Every family, fused and unfused, with attention as one operator and as several.
std::vector<NamedBlock> real_blocks();
/// Small-llama and small-gpt2 under tensor, sequence and both kinds of context parallelism.
std::vector<NamedBlock> parallel_blocks();

/// A forward graph of 6 to 11 nodes with every kind of node that recompute tells apart, and what backward reads of it.
Differentiated random_block(std::mt19937& random);

/// Seconds as a device of 100 TFLOP/s and 1 TB/s would need, bytes aligned to 64.
BlockCosts plausible_costs(const Differentiated& layer);
/// Anything, ties and zeros included.
BlockCosts random_costs(const Differentiated& layer, std::mt19937& random);

/// Index of the forward tensor called `name`.
int tensor_named(const Differentiated& layer, const std::string& name);
std::vector<std::string> names_of(const Differentiated& layer, const std::set<int>& tensors);

/// What goes wrong when backward starts from what is kept, runs the replayed nodes in order and then reads what it saved;
/// empty if nothing does.
std::string replay_fault(const Differentiated& layer, const ReplayPlan& plan);

}  // namespace foresail::testing
