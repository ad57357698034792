#include <array>
#include <sstream>

#include "core/error.h"
#include "runtime/checkpoint/checkpoint.h"

namespace foresail {
namespace {

bool is_wider(DType left, DType right) { return size_of(left) > size_of(right); }

// The stored quantity that fills a segment. The optimizer's own copy is better than one that was rounded from it; a run
// that adds a master copy may take the parameters; moments have no substitute.
const StoredTensor& stored_for(const Checkpoint& checkpoint, const std::string& tensor, const SegmentView& segment,
                               const LoadOptions& options) {
  const Manifest& manifest = checkpoint.manifest();
  const StoredTensor* const stored = manifest.find(tensor, segment.quantity);
  const StoredTensor* const master = manifest.find(tensor, Quantity::master);
  const StoredTensor* const parameter = manifest.find(tensor, Quantity::parameter);
  if (stored != nullptr && segment.quantity == Quantity::parameter && options.convert && master != nullptr &&
      is_wider(master->dtype, stored->dtype) && is_wider(segment.dtype, stored->dtype)) {
    return *master;
  }
  if (stored != nullptr) return *stored;
  if (segment.quantity == Quantity::master && options.convert && parameter != nullptr) return *parameter;
  throw_bad_input(checkpoint.path().string(),
                  "has no " + std::string(name_of(segment.quantity)) + " of tensor '" + tensor + "'",
                  "use a checkpoint of the same model and optimizer");
}

Conversion load_slice(const Checkpoint& checkpoint, const ParameterSlice& slice, const SegmentView& segment,
                      const LoadOptions& options) {
  const TensorSource source = checkpoint.source(stored_for(checkpoint, slice.tensor, segment, options));
  if (source.shape == slice.shape && source.dtype != segment.dtype && !options.convert) {
    throw_bad_input(
        source.what,
        "is " + std::string(name_of(source.dtype)) + ", the plan uses " + std::string(name_of(segment.dtype)),
        "ask for conversion explicitly, or use a plan of the same precision");
  }
  return fill_slice(source, slice, begin_of(segment, slice), segment.dtype);
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
    if (stored->digest == kNoDigestText) continue;
    throw_environment(checkpoint.path().string(),
                      "tensor '" + stored->full_name() + "' differs in memory from what was saved", kMemoryMend);
  }
}

}  // namespace

Conversion load_slices(const Checkpoint& checkpoint, std::span<const SegmentView> segments,
                       const LoadOptions& options) {
  checkpoint.check_files();
  Conversion result;
  for (const SegmentView& segment : segments) {
    for (const ParameterSlice& slice : segment.slices) {
      if (slice.elements() > 0) result += load_slice(checkpoint, slice, segment, options);
    }
  }
  return result;
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
