#include <array>
#include <cstring>
#include <sstream>

#include "core/error.h"
#include "runtime/checkpoint/checkpoint.h"

namespace foresail {
namespace {

template <typename From, typename To>
void convert_as(std::span<const std::byte> from, std::byte* to) {
  const size_t count = from.size() / sizeof(From);
  for (size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from.data() + i * sizeof value, sizeof value);
    const To converted = static_cast<To>(value);
    std::memcpy(to + i * sizeof converted, &converted, sizeof converted);
  }
}

bool convertible(DType from, DType to) {
  const auto wide = [](DType type) { return type == DType::f32 || type == DType::f64; };
  return from == to || (wide(from) && wide(to));
}

// The stored quantity that fills a segment. A run that adds a master copy to parameters kept in full precision may take
// the parameters; moments have no substitute.
const StoredTensor& source_of(const Checkpoint& checkpoint, const std::string& tensor, Quantity quantity,
                              const LoadOptions& options) {
  const Manifest& manifest = checkpoint.manifest();
  if (const StoredTensor* const stored = manifest.find(tensor, quantity)) return *stored;
  if (quantity == Quantity::master && options.convert) {
    const StoredTensor* const parameter = manifest.find(tensor, Quantity::parameter);
    if (parameter != nullptr && convertible(parameter->dtype, DType::f32)) return *parameter;
  }
  throw_bad_input(checkpoint.path().string(),
                  "has no " + std::string(name_of(quantity)) + " of tensor '" + tensor + "'",
                  "use a checkpoint of the same model and optimizer");
}

void load_slice(const Checkpoint& checkpoint, const ParameterSlice& slice, const SegmentView& segment,
                const LoadOptions& options) {
  std::byte* const base = begin_of(segment, slice);
  const StoredTensor& stored = source_of(checkpoint, slice.tensor, segment.quantity, options);
  const std::string what = checkpoint.path().string() + ": tensor '" + stored.full_name() + "'";
  if (stored.shape != slice.shape)
    throw_bad_input(what, "has another shape than the model", "use a checkpoint of this model");
  if (stored.dtype != segment.dtype && !options.convert) {
    throw_bad_input(
        what, "is " + std::string(name_of(stored.dtype)) + ", the plan uses " + std::string(name_of(segment.dtype)),
        "ask for conversion explicitly, or use a plan of the same precision");
  }
  const Rectangle part = rectangle_of(slice);
  const int64_t element_bytes = size_of(segment.dtype);
  int64_t filled = 0;
  checkpoint.read(stored, part, [&](int64_t row, int64_t column, std::span<const std::byte> elements) {
    const int64_t element = (row - part.row_begin) * slice.row_stride + column - part.column_begin;
    std::byte* const to = base + element * element_bytes;
    convert_elements(elements, stored.dtype, to, segment.dtype, what);
    filled += std::ssize(elements) / size_of(stored.dtype);
  });
  if (filled != part.elements())
    throw_bad_input(what, "does not cover what the plan needs", "use a checkpoint of this model");
}

constexpr const char* kMemoryMend = "check the memory of the hosts, then resume again";

// What follows the four numbers of a key.
std::string tensor_of(const std::string& key) {
  size_t at = 0;
  for (int number = 0; number < 4; ++number) at = key.find(' ', at) + 1;
  return key.substr(at);
}

// One line per slice: "holder low high key", holder 0 for the first and 1 for a second holder.
std::string sums_of_slices(const SegmentView& segment) {
  std::string text;
  for (const ParameterSlice& slice : segment.slices) {
    if (slice.elements() == 0) continue;
    const ElementSum sum = sum_elements(begin_of(segment, slice), segment.dtype, rectangle_of(slice), slice.row_stride,
                                        slice.shape.size() > 1 ? slice.shape[1] : 1);
    text += std::to_string(slice.second_holder ? 1 : 0) + ' ' + std::to_string(sum.low) + ' ' +
            std::to_string(sum.high) + ' ' + key_of(slice) + '\n';
  }
  return text;
}

struct HeldSum {
  int rank = 0;
  ElementSum sum;
};
using SumByKey = std::map<std::string, HeldSum>;

[[noreturn]] void refuse_difference(const std::string& name, const std::string& where) {
  throw_environment("tensor '" + name + "'", "differs between " + where + ", which must hold the same", kMemoryMend);
}

// Enters the sums of one rank; a rectangle that another rank entered must have the same sum.
void enter_sums(const std::string& text, int rank, std::array<SumByKey, 2>& by_holder) {
  std::istringstream lines(text);
  size_t holder = 0;
  ElementSum sum;
  std::string key;
  while (lines >> holder >> sum.low >> sum.high && lines.get() == ' ' && std::getline(lines, key)) {
    const auto [at, added] = by_holder.at(holder).try_emplace(key, HeldSum{rank, sum});
    if (added || at->second.sum == sum) continue;
    refuse_difference(tensor_of(key), "rank " + std::to_string(at->second.rank) + " and rank " + std::to_string(rank));
  }
}

std::map<std::string, ElementSum> sum_by_tensor(const SumByKey& sums) {
  std::map<std::string, ElementSum> tensors;
  for (const auto& [key, held] : sums) tensors[tensor_of(key)] += held.sum;
  return tensors;
}

// Compares only what is held as it is stored: converted elements have other bits.
void prove(const Checkpoint& checkpoint, const std::map<std::string, std::string>& digests,
           const SegmentView& segment) {
  for (const auto& [tensor, digest] : digests) {
    const StoredTensor* const stored = checkpoint.manifest().find(tensor, segment.quantity);
    if (stored == nullptr || stored->dtype != segment.dtype || stored->digest == digest) continue;
    throw_environment(checkpoint.path().string(),
                      "tensor '" + stored->full_name() + "' differs in memory from what was saved", kMemoryMend);
  }
}

}  // namespace

void convert_elements(std::span<const std::byte> from, DType from_type, std::byte* to, DType to_type,
                      const std::string& what) {
  if (from_type == to_type) {
    std::memcpy(to, from.data(), from.size());
  } else if (from_type == DType::f64 && to_type == DType::f32) {
    convert_as<double, float>(from, to);
  } else if (from_type == DType::f32 && to_type == DType::f64) {
    convert_as<float, double>(from, to);
  } else {
    throw_bad_input(
        what, "cannot be converted from " + std::string(name_of(from_type)) + " to " + std::string(name_of(to_type)),
        "use a plan of the same precision");
  }
}

void load_slices(const Checkpoint& checkpoint, std::span<const SegmentView> segments, const LoadOptions& options) {
  checkpoint.check_files();
  for (const SegmentView& segment : segments) {
    for (const ParameterSlice& slice : segment.slices) {
      if (slice.elements() > 0) load_slice(checkpoint, slice, segment, options);
    }
  }
}

std::map<std::string, std::string> tensor_digests(const SegmentView& segment, const CheckpointRanks& ranks) {
  std::array<SumByKey, 2> by_holder;
  const std::vector<std::string> texts = gather_texts(ranks, sums_of_slices(segment));
  for (size_t rank = 0; rank < texts.size(); ++rank) enter_sums(texts[rank], static_cast<int>(rank), by_holder);
  const auto first = sum_by_tensor(by_holder[0]);
  // Sums do not depend on where a tensor is cut, so they compare even when its two holders shard it differently.
  for (const auto& [tensor, sum] : sum_by_tensor(by_holder[1])) {
    const auto other = first.find(tensor);
    if (other == first.end() || !(other->second == sum)) refuse_difference(tensor, "its two holders");
  }
  std::map<std::string, std::string> digests;
  for (const auto& [tensor, sum] : first) digests[tensor] = hex_of(sum);
  return digests;
}

std::string restore_checkpoint(const std::filesystem::path& path, std::span<const SegmentView> segments,
                               const LoadOptions& options, const CheckpointRanks& ranks) {
  std::unique_ptr<Checkpoint> checkpoint;
  all_do(ranks, [&] {
    checkpoint = std::make_unique<Checkpoint>(path);
    load_slices(*checkpoint, segments, options);
    return std::string();
  });
  std::string parameters;
  for (const SegmentView& segment : segments) {
    const auto digests = tensor_digests(segment, ranks);
    prove(*checkpoint, digests, segment);  // the same on every rank: digests were gathered
    if (segment.quantity == Quantity::parameter) parameters = combine_digests(digests);
  }
  return parameters;
}

}  // namespace foresail
