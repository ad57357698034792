// What the equivalence suite combines: factors with a few values each. A row gives every factor one value and becomes an
// experiment; rows whose strategy is not legal, or in which a chosen feature would do nothing, are not possible.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/equivalence/harness.h"

namespace foresail::testing {

/// Those before `recompute` decide alone whether a strategy is legal.
enum class Factor : uint8_t {
  model,
  dp,
  tp,
  pp,
  context,
  zero_group,
  zero_stage,
  schedule,
  micro_batch,
  batch,
  stage_layers,
  sequence_parallel,
  kv_copies,  ///< follows from model and tp
  experts,    ///< degrees over which they are cut; a dense model has only the first value
  recompute,
  kernels,
  attention,
  overlap,
  reduce_dtype,
  accumulate_dtype,
  queues,
  count_
};
inline constexpr size_t kFactors = static_cast<size_t>(Factor::count_);
inline constexpr size_t kStructuralFactors = static_cast<size_t>(Factor::recompute);

/// Number of the value of each factor.
struct Row {
  std::array<uint8_t, kFactors> values{};
  uint8_t& operator[](Factor factor) { return values[static_cast<size_t>(factor)]; }
  uint8_t operator[](Factor factor) const { return values[static_cast<size_t>(factor)]; }
  bool operator==(const Row&) const = default;
};

const char* name_of(Factor factor);
/// What people read for each value of a factor.
const std::vector<std::string>& values_of(Factor factor);

/// Most ranks of a case.
inline constexpr int64_t kMostRanks = 8;

/// A job that small models learn within ten steps.
Job suite_job(const std::string& device, int64_t global_batch);

/// The floating-point type with kernels on a device that its gradients are not made in.
std::string other_type(const std::string& device);

Experiment experiment_of(const Row& row, const std::string& device);

/// Whether the structural factors give a legal strategy in which each of them does something.
bool structure_is_possible(const Row& row);
/// Whether the others do something beside a possible structure.
bool rest_is_possible(const Row& row);

/// All factors at once.
inline bool is_possible(const Row& row) { return rest_is_possible(row) && structure_is_possible(row); }

}  // namespace foresail::testing
