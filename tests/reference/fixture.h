// The fixtures that generate_fixtures.py leaves (its head says what is in the files).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/model_spec.h"

namespace foresail::testing {

struct FixtureBatch {
  std::vector<int32_t> tokens, targets;  ///< sequences x sequence_length

  int64_t counted() const;  ///< targets >= 0
};

struct Trajectory {
  double learning_rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0, clip_norm = 0;
  std::vector<double> losses, gradient_norms;
};

/// Values by Hugging Face name, in the orientation of Hugging Face files.
using Tensors = std::map<std::string, std::vector<double>>;

struct Fixture {
  std::filesystem::path folder;
  ModelSpec model;
  int64_t sequence_length = 0, sequences = 0, parameters = 0;
  std::vector<FixtureBatch> batches;
  double loss = 0, auxiliary_loss = 0, gradient_norm = 0;
  std::optional<Trajectory> trajectory;
  Tensors gradients, trained;
};

/// A folder of tests/reference/fixtures.
Fixture load_fixture(const std::string& name);

/// Element i (row-major, file orientation) of a tensor before training: exact in float32.
double initial_value_of(const std::string& tensor, int64_t index);

}  // namespace foresail::testing
