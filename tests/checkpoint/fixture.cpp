#include "tests/checkpoint/fixture.h"

#include <algorithm>
#include <cstring>

#include "tests/checkpoint/thread_communicator.h"

namespace foresail {
namespace {

constexpr std::byte kGap{0x5A};

/// Calls body(element of the segment, row, column) for every element of a slice.
template <typename Body>
void for_elements(const ParameterSlice& slice, const Body& body) {
  for (int64_t row = slice.row_begin; row < slice.row_end; ++row) {
    for (int64_t column = slice.column_begin; column < slice.column_end; ++column) {
      body(slice.element_offset + (row - slice.row_begin) * slice.row_stride + column - slice.column_begin, row,
           column);
    }
  }
}

}  // namespace

void RankMemory::add(const std::string& tensor, std::vector<int64_t> shape, Rectangle part, bool second_holder) {
  ParameterSlice slice;
  slice.tensor = tensor;
  slice.shape = std::move(shape);
  slice.row_begin = part.row_begin, slice.row_end = part.row_end;
  slice.column_begin = part.column_begin, slice.column_end = part.column_end;
  slice.row_stride = part.columns();
  slice.second_holder = second_holder;
  slice.element_offset = elements;
  slices.push_back(slice);
  slice.element_offset = state_elements;
  state.push_back(slice);
  elements += part.elements() + 3;
  state_elements += part.elements() + 3;
}

std::vector<SegmentView> RankMemory::segments(const std::vector<Quantity>& quantities) {
  std::vector<SegmentView> views;
  for (const Quantity quantity : quantities) {
    const int64_t count = quantity == Quantity::parameter ? elements : state_elements;
    auto& bytes = storage[quantity];
    bytes.resize(static_cast<size_t>(count * size_of(dtype)), kGap);
    views.push_back({quantity, dtype, bytes.data(), held(quantity)});
  }
  return views;
}

double RankMemory::at(Quantity quantity, int64_t element) const {
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

void RankMemory::set(Quantity quantity, int64_t element, double value) {
  std::byte* const to = storage.at(quantity).data() + element * size_of(dtype);
  const auto narrow = static_cast<float>(value);
  dtype == DType::f64 ? std::memcpy(to, &value, sizeof value) : std::memcpy(to, &narrow, sizeof narrow);
}

void RankMemory::fill(const std::vector<Quantity>& quantities) {
  segments(quantities);
  for (const Quantity quantity : quantities) {
    for (const ParameterSlice& slice : held(quantity)) {
      const double origin = value_at_origin(slice.tensor, quantity);
      for_elements(slice, [&](int64_t element, int64_t row, int64_t column) {
        set(quantity, element, value_at(origin, row, column));
      });
    }
  }
}

std::string RankMemory::wrong(const std::vector<Quantity>& quantities) const {
  std::string found;
  for (const Quantity quantity : quantities) {
    std::vector<bool> in_a_slice(storage.at(quantity).size());
    for (const ParameterSlice& slice : held(quantity)) {
      const double origin = value_at_origin(slice.tensor, quantity);
      for_elements(slice, [&](int64_t element, int64_t row, int64_t column) {
        const int64_t bytes = size_of(dtype);
        std::fill_n(in_a_slice.begin() + element * bytes, bytes, true);
        const double expected = static_cast<float>(value_at(origin, row, column));
        if (std::abs(at(quantity, element) - expected) <= 1e-4) return;
        found = slice.tensor + " (" + std::to_string(row) + ", " + std::to_string(column) + ") of " +
                std::string(name_of(quantity));
      });
    }
    for (size_t byte = 0; byte < in_a_slice.size(); ++byte) {
      if (!in_a_slice[byte] && storage.at(quantity)[byte] != kGap) {
        found = "byte " + std::to_string(byte) + " of " + std::string(name_of(quantity)) + " belongs to nobody";
      }
    }
  }
  return found;
}

std::vector<std::string> save_from(const std::filesystem::path& folder, int64_t step, int pp, int dp, int tp,
                                   DType dtype, int64_t keep) {
  return run_ranks(pp * dp * tp, [&](Communicator& communicator) {
    RankMemory memory = rank_memory(pp, dp, tp, communicator.rank(), dtype);
    memory.fill(kAdamW);
    const std::vector<SegmentView> segments = memory.segments(kAdamW);
    const RunState state = communicator.rank() == 0 ? state_at(step) : RunState{step, 0, 0, {}, {}, {}, {}, {}, {}, {}};
    save_checkpoint({folder, state, segments, keep, 64}, {&communicator, 0});
  });
}

}  // namespace foresail
