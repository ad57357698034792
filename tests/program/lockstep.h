// Runs the graph of one kind of layer, forward and backward, on all ranks that share it: in one process, node after node
// in lockstep, with the reference kernels and collectives that copy between the ranks' tensors. What the ranks computed is
// put together again, so that any cut can be compared with one rank.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/model_spec.h"
#include "program/shard.h"

namespace foresail::testing {

enum class LayerKind : uint8_t { embedding, block, head };

struct LayerRun {
  ModelSpec model;
  LayerKind kind = LayerKind::block;
  Cut cut;
  bool fused = false;              ///< fused operators of the table
  bool unfused_attention = false;  ///< stored scores
  int64_t micro_batch = 2, sequence_length = 16;
};

struct LayerResult {
  std::vector<double> output, input_gradient;  ///< [T,H] in the order of whole sequences; empty where there is none
  double loss = 0;
  std::map<std::string, std::vector<double>> gradients;  ///< by logical tensor, whole
};

/// Weights, hidden states, gradients and tokens are random, the same for every cut. Throws std::runtime_error if ranks
/// that hold the same disagree, or if an element of a logical tensor is held by nobody or twice.
LayerResult run_layer(const LayerRun& run);

/// Names what differs by more than `tolerance` times the largest element of the expected tensor; empty: all equal.
std::string difference(const LayerResult& expected, const LayerResult& actual, double tolerance);

}  // namespace foresail::testing
