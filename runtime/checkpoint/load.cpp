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
  const int64_t width = part.columns(), element_bytes = size_of(segment.dtype);
  std::byte* const base = segment.data + slice.element_offset * element_bytes;
  int64_t filled = 0;
  checkpoint.read(stored, part, [&](int64_t row, int64_t column, std::span<const std::byte> elements) {
    std::byte* const to = base + ((row - part.row_begin) * width + column - part.column_begin) * element_bytes;
    convert_elements(elements, stored.dtype, to, segment.dtype, what);
    filled += std::ssize(elements) / size_of(stored.dtype);
  });
  if (filled != part.elements())
    throw_bad_input(what, "does not cover what the plan needs", "use a checkpoint of this model");
}

// "low high" of every tensor this rank owns a part of, one line each.
std::string owned_sums(std::span<const ParameterSlice> slices, const SegmentView& parameters,
                       const std::vector<bool>& owned) {
  std::string text;
  for (size_t i = 0; i < slices.size(); ++i) {
    if (!owned[i]) continue;
    const ParameterSlice& slice = slices[i];
    const ElementSum sum =
        sum_elements(parameters.data + slice.element_offset * size_of(parameters.dtype), parameters.dtype,
                     rectangle_of(slice), slice.shape.size() > 1 ? slice.shape[1] : 1);
    text += std::to_string(sum.low) + ' ' + std::to_string(sum.high) + ' ' + slice.tensor + '\n';
  }
  return text;
}

const SegmentView* parameters_of(std::span<const SegmentView> segments) {
  for (const SegmentView& segment : segments) {
    if (segment.quantity == Quantity::parameter) return &segment;
  }
  return nullptr;
}

// Compares only tensors held in the stored type: a converted one has other bits.
void prove(const Checkpoint& checkpoint, const std::map<std::string, std::string>& digests, DType dtype) {
  for (const auto& [tensor, digest] : digests) {
    const StoredTensor* const stored = checkpoint.manifest().find(tensor, Quantity::parameter);
    ensure(stored != nullptr, "a loaded tensor is in the manifest");
    if (stored->dtype != dtype || stored->digest == digest) continue;
    throw_environment(checkpoint.path().string(), "tensor '" + tensor + "' differs in memory from what was saved",
                      "check this host's memory, then resume again");
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

void load_slices(const Checkpoint& checkpoint, std::span<const ParameterSlice> slices,
                 std::span<const SegmentView> segments, const LoadOptions& options) {
  checkpoint.check_files();
  for (const SegmentView& segment : segments) {
    for (const ParameterSlice& slice : slices) {
      if (slice.elements() > 0) load_slice(checkpoint, slice, segment, options);
    }
  }
}

std::map<std::string, std::string> parameter_digests(std::span<const ParameterSlice> slices,
                                                     const SegmentView& parameters, const CheckpointRanks& ranks) {
  const std::vector<bool> owned = owned_slices(ranks, slices);
  std::map<std::string, ElementSum> sums;
  for (const std::string& text : gather_texts(ranks, owned_sums(slices, parameters, owned))) {
    std::istringstream lines(text);
    ElementSum sum;
    std::string tensor;
    while (lines >> sum.low >> sum.high && lines.get() == ' ' && std::getline(lines, tensor)) sums[tensor] += sum;
  }
  std::map<std::string, std::string> digests;
  for (const auto& [tensor, sum] : sums) digests[tensor] = hex_of(sum);
  return digests;
}

std::string restore_checkpoint(const std::filesystem::path& path, std::span<const ParameterSlice> slices,
                               std::span<const SegmentView> segments, const LoadOptions& options,
                               const CheckpointRanks& ranks) {
  std::unique_ptr<Checkpoint> checkpoint;
  all_do(ranks, [&] {
    checkpoint = std::make_unique<Checkpoint>(path);
    load_slices(*checkpoint, slices, segments, options);
    return std::string();
  });
  const SegmentView* const parameters = parameters_of(segments);
  if (parameters == nullptr) return "";
  const auto digests = parameter_digests(slices, *parameters, ranks);
  prove(*checkpoint, digests, parameters->dtype);  // the same on every rank: digests were gathered
  return combine_digests(digests);
}

}  // namespace foresail
