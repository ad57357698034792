// A small model cut in different ways, with values that tell where each element belongs.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "program/program.h"
#include "runtime/checkpoint/checkpoint.h"

namespace foresail {

/// Value of a logical element: a function of its place, so that any plan can check what it loaded.
inline double value_at_origin(const std::string& tensor, Quantity quantity) {
  double value = static_cast<double>(quantity) * 1000 + 0.25;
  for (const char c : tensor) value = std::fmod(value * 31 + c, 977);
  return value;
}
inline double value_at(double origin, int64_t row, int64_t column) {
  return origin + static_cast<double>(row) + static_cast<double>(column) / 1024;
}
inline double expected_value(const std::string& tensor, Quantity quantity, int64_t row, int64_t column) {
  return value_at(value_at_origin(tensor, quantity), row, column);
}

/// What one rank holds: slices laid out one after another (with gaps that belong to nobody), and its segments.
struct RankMemory {
  std::vector<ParameterSlice> slices;  ///< of the parameters
  std::vector<ParameterSlice> state;   ///< of the master copy and the moments
  DType dtype = DType::f32;
  int64_t elements = 0, state_elements = 0;  ///< of a segment, gaps included
  std::map<Quantity, std::vector<std::byte>> storage;

  /// A rectangle without gaps, in parameters and state alike.
  void add(const std::string& tensor, std::vector<int64_t> shape, Rectangle part, bool second_holder = false);
  /// Segments of these quantities; those that did not exist are filled with a pattern that no element has.
  std::vector<SegmentView> segments(const std::vector<Quantity>& quantities);
  double at(Quantity quantity, int64_t element) const;
  void set(Quantity quantity, int64_t element, double value);
  void fill(const std::vector<Quantity>& quantities);
  /// Elements that are not what they should be, gaps that were written to; empty: none.
  std::string wrong(const std::vector<Quantity>& quantities) const;

  const std::vector<ParameterSlice>& held(Quantity quantity) const {
    return quantity == Quantity::parameter ? slices : state;
  }
};

inline const std::vector<Quantity> kAdamW = {Quantity::parameter, Quantity::moment1, Quantity::moment2};

/// The model: embedding [23, 8] (tied: held again by the last stage), fused attention [12, 8] in three parts of 4 rows
/// that are cut by rows, projection [8, 10] cut by columns, norm [8] replicated.
/// Rank = (pp * dp + d) * tp + t; the norm and projection live on the last stage.
inline RankMemory rank_memory(int pp, int dp, int tp, int rank, DType dtype = DType::f32) {
  RankMemory memory;
  memory.dtype = dtype;
  const int64_t t = rank % tp, stage = rank / (tp * dp);
  const auto cut = [&](int64_t size) {
    const int64_t local = (size + tp - 1) / tp;
    return std::pair(std::min(size, t * local), std::min(size, (t + 1) * local));
  };
  const auto [vocabulary_begin, vocabulary_end] = cut(23);
  if (stage == 0) {
    memory.add("embedding.weight", {23, 8}, {vocabulary_begin, vocabulary_end, 0, 8});
    const auto [begin, end] = cut(4);
    for (int64_t part = 0; part < 3; ++part)
      memory.add("attention.weight", {12, 8}, {part * 4 + begin, part * 4 + end, 0, 8});
  }
  if (stage == pp - 1) {
    const auto [begin, end] = cut(10);
    memory.add("projection.weight", {8, 10}, {0, 8, begin, end});
    memory.add("norm.weight", {8}, {0, 8, 0, 1});
    memory.add("embedding.weight", {23, 8}, {vocabulary_begin, vocabulary_end, 0, 8}, true);
  }
  return memory;
}

inline RunState state_at(int64_t step) {
  RunState state;
  state.step = step;
  state.samples_consumed = step * 16;
  state.seed = 0xFEDCBA9876543210;
  state.foresail_version = "0.1.0";
  state.plan_digest = "plan";
  state.dataset_identity = "data";
  state.model_name = "tiny";
  state.model_config = "{\"model_type\": \"llama\"}\n";
  state.losses = {{step - 1, 2.5}, {step, 0.1 + 0.2}};
  state.notes = {{"job", "{}"}};
  return state;
}

/// Saves step `step` from pp x dp x tp thread ranks with pieces of 64 bytes. Returns the ranks' errors.
std::vector<std::string> save_from(const std::filesystem::path& folder, int64_t step, int pp, int dp, int tp,
                                   DType dtype = DType::f32, int64_t keep = 100);

}  // namespace foresail
