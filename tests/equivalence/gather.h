// Tensors of a distributed model in global coordinates, from what every rank holds of them.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "models/model_spec.h"
#include "program/compile.h"

namespace foresail::testing {

using Tensors = std::map<std::string, std::vector<double>>;  ///< by logical name, row-major

/// One rank's slices of every tensor and their elements, slice after slice, row by row.
struct Held {
  std::vector<ParameterSlice> slices;
  std::vector<double> values;
  bool first_copy = false;         ///< no lower data rank holds the same
  bool first_expert_copy = false;  ///< of experts: no lower rank of their mesh does
};

/// Reads the slices from a segment that begins at `base`.
std::vector<double> read_slices(const std::vector<ParameterSlice>& slices, const std::byte* base, DType dtype);

/// Elements of a segment that lie in no slice (padding) and are not zero.
int64_t nonzero_padding(const std::vector<ParameterSlice>& slices, const std::byte* base, int64_t elements,
                        DType dtype);

/// The tensors of the whole model on every rank of `everyone`. Every element must come from exactly one of the first
/// copies, and all other copies must have the same bits: else `violations` says which tensor, `what` names the quantity.
Tensors gather_tensors(const ModelSpec& model, const Held& held, const char* what, Communicator& communicator,
                       GroupId everyone, std::vector<std::string>& violations);

}  // namespace foresail::testing
