#include "tests/equivalence/gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "core/error.h"

namespace foresail::testing {
namespace {

double element_at(const std::byte* base, DType dtype, int64_t index) {
  if (dtype == DType::f64) {
    double value;
    std::memcpy(&value, base + index * 8, 8);
    return value;
  }
  float value;
  std::memcpy(&value, base + index * 4, 4);
  return value;
}

int64_t columns_of(const ParameterSlice& slice) { return slice.shape.size() > 1 ? slice.shape[1] : 1; }

int64_t elements_of(const ParameterSlice& slice) { return slice.shape[0] * columns_of(slice); }

/// Calls body(element of the segment, element of the tensor).
template <typename Body>
void for_elements(const ParameterSlice& slice, const Body& body) {
  const int64_t columns = columns_of(slice);
  for (int64_t row = slice.row_begin; row < slice.row_end; ++row) {
    const int64_t begin = slice.element_offset + (row - slice.row_begin) * slice.row_stride;
    for (int64_t column = slice.column_begin; column < slice.column_end; ++column) {
      body(begin + column - slice.column_begin, row * columns + column);
    }
  }
}

/// Where each tensor begins in one long list of all elements.
std::map<std::string, int64_t> places_of(const std::vector<ParameterSlice>& whole, int64_t& total) {
  std::map<std::string, int64_t> places;
  total = 0;
  for (const ParameterSlice& slice : whole) {
    if (places.try_emplace(slice.tensor, total).second) total += elements_of(slice);
  }
  return places;
}

bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

}  // namespace

std::vector<double> read_slices(const std::vector<ParameterSlice>& slices, const std::byte* base, DType dtype) {
  std::vector<double> values;
  for (const ParameterSlice& slice : slices) {
    for_elements(slice, [&](int64_t at, int64_t) { values.push_back(element_at(base, dtype, at)); });
  }
  return values;
}

int64_t nonzero_padding(const std::vector<ParameterSlice>& slices, const std::byte* base, int64_t elements,
                        DType dtype) {
  std::vector<bool> covered(static_cast<size_t>(elements), false);
  for (const ParameterSlice& slice : slices) {
    for_elements(slice, [&](int64_t at, int64_t) { covered.at(static_cast<size_t>(at)) = true; });
  }
  int64_t count = 0;
  for (int64_t i = 0; i < elements; ++i) count += !covered[static_cast<size_t>(i)] && element_at(base, dtype, i) != 0;
  return count;
}

Tensors gather_tensors(const ModelSpec& model, const Held& held, const char* what, Communicator& communicator,
                       GroupId everyone, std::vector<std::string>& violations) {
  const auto whole = rank_slices(model, Strategy{}, {}).parameters;
  int64_t total = 0;
  const auto places = places_of(whole, total);
  // Values, then how many first copies each came from.
  std::vector<double> sums(static_cast<size_t>(2 * total), 0.0);
  size_t next = 0;
  for (const ParameterSlice& slice : held.slices) {
    const bool first = slice.of_experts ? held.first_expert_copy : held.first_copy;
    const bool counts = first && !slice.second_holder && !slice.replicated;
    for_elements(slice, [&](int64_t, int64_t element) {
      const double value = held.values[next++];
      if (!counts) return;
      const auto at = static_cast<size_t>(places.at(slice.tensor) + element);
      sums[at] += value;
      sums[static_cast<size_t>(total) + at] += 1;
    });
  }
  communicator.all_reduce(sums.data(), 2 * total, DType::f64, ReduceKind::sum, everyone);
  next = 0;
  for (const ParameterSlice& slice : held.slices) {
    bool equal = true;
    for_elements(slice, [&](int64_t, int64_t element) {
      // + 0: the sum with other ranks' zeros has no negative zero.
      equal &= same_bits(sums[static_cast<size_t>(places.at(slice.tensor) + element)], held.values[next++] + 0.0);
    });
    if (!equal) violations.push_back(fmt::format("{} of {} differ between holders", what, slice.tensor));
  }
  Tensors tensors;
  for (const ParameterSlice& slice : whole) {
    const auto begin = sums.begin() + places.at(slice.tensor);
    const auto counts = begin + total;
    if (!std::all_of(counts, counts + elements_of(slice), [](double count) { return count == 1; })) {
      violations.push_back(fmt::format("{} of {}: not every element has exactly one first holder", what, slice.tensor));
    }
    tensors[slice.tensor] = {begin, begin + elements_of(slice)};
  }
  return tensors;
}

}  // namespace foresail::testing
