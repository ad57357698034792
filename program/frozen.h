// Fine-tuning trains a part of a model: which weights keep their values, by the names of their tensors.
#pragma once

#include <string>
#include <vector>

#include "models/model_spec.h"

namespace foresail {

/// Whether `pattern`, in which * stands for any characters, is the whole of `name`.
bool matches(const std::string& pattern, const std::string& name);

/// Sets Weight::frozen where `patterns` name every tensor of the weight in each layer that has it: layers of a kind share
/// their blocks, and a packed weight is one matrix.
void mark_frozen(ModelGraphs& graphs, const ModelSpec& model, const std::vector<std::string>& patterns);

/// Why the patterns cannot be followed: one that names nothing, tensors of a weight or layers that are named only in
/// part, nothing left to train. Empty if they can.
std::vector<std::string> frozen_problems(const ModelSpec& model, const std::vector<std::string>& patterns);

}  // namespace foresail
