// Next-token probabilities from a trained checkpoint: the forward Program over a growing context, one rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device.h"
#include "models/model_spec.h"
#include "program/compile.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/executor/executor.h"

namespace foresail {

class Generator {
 public:
  /// Loads the parameters of a step-N folder in f32. `context` bounds the tokens that are looked back at. Throws bad_input
  /// on a checkpoint that is damaged or of a model that this binary does not know.
  Generator(const Checkpoint& checkpoint, int64_t context, int threads);
  ~Generator();

  const ModelSpec& model() const { return model_; }
  /// Scores of every id of the vocabulary after `tokens` (at least one; only the last `context` count). Valid until the
  /// next call.
  std::span<const float> next_scores(std::span<const int32_t> tokens);

 private:
  struct Length;  ///< one Program per power of two of tokens, so that short contexts cost little
  Length& length_for(int64_t tokens);
  void activate(Length& length);

  ModelSpec model_;
  int64_t context_;
  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<Length>> lengths_;  ///< ascending
  std::unique_ptr<Arena> arena_;                  ///< large enough for each of them
  Length* active_ = nullptr;                      ///< whose places the parameters lie at
};

/// Draws an id: softmax of scores / temperature; the best one at temperature 0. `uniform` lies in (0, 1).
int32_t draw(std::span<const float> scores, double temperature, double uniform);

}  // namespace foresail
