// A small model cut in different ways, with values that tell where each element belongs.
#pragma once

#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "program/program.h"
#include "runtime/checkpoint/checkpoint.h"

namespace foresail {

/// Value of a logical element: a function of its place, so that any plan can check what it loaded.
inline double expected_value(const std::string& tensor, Quantity quantity, int64_t row, int64_t column) {
  double value = static_cast<double>(quantity) * 1000 + 0.25;
  for (const char c : tensor) value = std::fmod(value * 31 + c, 977);
  return value + static_cast<double>(row) + static_cast<double>(column) / 1024;
}

/// What one rank holds: slices laid out one after another (with a gap), and its segments.
struct RankMemory {
  std::vector<ParameterSlice> slices;
  DType dtype = DType::f32;
  int64_t elements = 0;
  std::map<Quantity, std::vector<std::byte>> storage;

  void add(const std::string& tensor, std::vector<int64_t> shape, Rectangle part, bool second_holder = false) {
    ParameterSlice slice;
    slice.tensor = tensor;
    slice.shape = std::move(shape);
    slice.row_begin = part.row_begin, slice.row_end = part.row_end;
    slice.column_begin = part.column_begin, slice.column_end = part.column_end;
    slice.element_offset = elements;
    slice.second_holder = second_holder;
    elements += part.elements() + 3;
    slices.push_back(slice);
  }
  std::vector<SegmentView> segments(const std::vector<Quantity>& quantities) {
    std::vector<SegmentView> views;
    for (const Quantity quantity : quantities) {
      auto& bytes = storage[quantity];
      bytes.resize(static_cast<size_t>(elements * size_of(dtype)));
      views.push_back({quantity, dtype, bytes.data()});
    }
    return views;
  }
  double at(Quantity quantity, int64_t element) const {
    const std::byte* const from = storage.at(quantity).data() + element * size_of(dtype);
    float narrow = 0;
    double wide = 0;
    if (dtype == DType::f64) {
      std::memcpy(&wide, from, sizeof wide);
      return wide;
    }
    std::memcpy(&narrow, from, sizeof narrow);
    return static_cast<double>(narrow);
  }
  void set(Quantity quantity, int64_t element, double value) {
    std::byte* const to = storage.at(quantity).data() + element * size_of(dtype);
    const auto narrow = static_cast<float>(value);
    dtype == DType::f64 ? std::memcpy(to, &value, sizeof value) : std::memcpy(to, &narrow, sizeof narrow);
  }
  void fill(const std::vector<Quantity>& quantities) {
    segments(quantities);
    for (const Quantity quantity : quantities) {
      for (const ParameterSlice& slice : slices) {
        const int64_t width = slice.column_end - slice.column_begin;
        for (int64_t i = 0; i < slice.elements(); ++i) {
          set(quantity, slice.element_offset + i,
              expected_value(slice.tensor, quantity, slice.row_begin + i / width, slice.column_begin + i % width));
        }
      }
    }
  }
  /// Elements that are not what they should be, as text; empty: none.
  std::string wrong(const std::vector<Quantity>& quantities) const {
    for (const Quantity quantity : quantities) {
      for (const ParameterSlice& slice : slices) {
        const int64_t width = slice.column_end - slice.column_begin;
        for (int64_t i = 0; i < slice.elements(); ++i) {
          const double expected = static_cast<float>(
              expected_value(slice.tensor, quantity, slice.row_begin + i / width, slice.column_begin + i % width));
          if (std::abs(at(quantity, slice.element_offset + i) - expected) > 1e-4) {
            return slice.tensor + " element " + std::to_string(i) + " of " + std::string(name_of(quantity));
          }
        }
      }
    }
    return "";
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
