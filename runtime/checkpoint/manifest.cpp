#include "runtime/checkpoint/manifest.h"

#include <algorithm>
#include <array>
#include <set>
#include <tuple>

#include "core/error.h"

namespace foresail {
namespace {

constexpr const char* kMend = "the checkpoint is damaged: use another one";

[[noreturn]] void fail(const std::string& source, const std::string& name, const std::string& cause) {
  throw_bad_input(source, "tensor '" + name + "' " + cause, kMend);
}

std::string text_of(const Rectangle& part) {
  return "[" + std::to_string(part.row_begin) + ":" + std::to_string(part.row_end) + ", " +
         std::to_string(part.column_begin) + ":" + std::to_string(part.column_end) + "]";
}

void check_shape(const StoredTensor& tensor, const std::string& source) {
  int64_t bytes = size_of(tensor.dtype);
  if (tensor.shape.empty() || tensor.shape.size() > 2)
    fail(source, tensor.full_name(), "has no shape of one or two extents");
  for (const int64_t extent : tensor.shape) {
    if (extent < 1 || __builtin_mul_overflow(bytes, extent, &bytes))
      fail(source, tensor.full_name(), "has an absurd shape");
  }
}

void check_slab(const Manifest& manifest, const StoredTensor& tensor, const Slab& slab, const std::string& source) {
  const Rectangle& part = slab.part;
  const bool inside = 0 <= part.row_begin && part.row_begin < part.row_end && part.row_end <= tensor.rows() &&
                      0 <= part.column_begin && part.column_begin < part.column_end &&
                      part.column_end <= tensor.columns();
  if (!inside) fail(source, tensor.full_name(), "has a slab " + text_of(part) + " outside its shape");
  if (slab.file < 0 || slab.file >= std::ssize(manifest.files))
    fail(source, tensor.full_name(), "names an unknown file");
  const int64_t bytes = part.elements() * size_of(tensor.dtype);
  const int64_t file_bytes = manifest.files[static_cast<size_t>(slab.file)].bytes;
  if (slab.offset < 0 || bytes > file_bytes || slab.offset > file_bytes - bytes) {
    fail(source, tensor.full_name(), "has a slab beyond the end of its file");
  }
  if (!manifest.sealed && slab.pieces.empty()) return;
  if (std::ssize(slab.pieces) != (bytes + manifest.piece_bytes - 1) / manifest.piece_bytes) {
    fail(source, tensor.full_name(), "has a slab with the wrong number of digests");
  }
}

// Every element once: no two slabs meet, and their areas add up.
void check_cover(const StoredTensor& tensor, const std::string& source) {
  std::vector<Rectangle> parts;
  int64_t covered = 0;
  for (const Slab& slab : tensor.slabs) {
    parts.push_back(slab.part);
    if (__builtin_add_overflow(covered, slab.part.elements(), &covered))
      fail(source, tensor.full_name(), "is covered twice");
  }
  std::sort(parts.begin(), parts.end());
  for (size_t i = 0; i < parts.size(); ++i) {
    for (size_t j = i + 1; j < parts.size() && parts[j].row_begin < parts[i].row_end; ++j) {
      const Rectangle both = intersection(parts[i], parts[j]);
      if (both.columns() > 0) fail(source, tensor.full_name(), "is covered twice at " + text_of(both));
    }
  }
  const int64_t elements = tensor.rows() * tensor.columns();
  if (covered != elements) {
    fail(source, tensor.full_name(),
         "is not complete: " + std::to_string(covered) + " of " + std::to_string(elements) + " elements are stored");
  }
}

auto order_of(const StoredTensor& tensor) { return std::tie(tensor.tensor, tensor.quantity); }

}  // namespace

bool is_plain_file_name(const std::string& name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  };
  return !name.empty() && name.front() != '.' && std::all_of(name.begin(), name.end(), plain);
}

std::string_view name_of(Quantity quantity) {
  constexpr std::array<std::string_view, 4> kNames = {"parameter", "master", "moment1", "moment2"};
  return kNames.at(static_cast<size_t>(quantity));
}

std::string_view suffix_of(Quantity quantity) {
  constexpr std::array<std::string_view, 4> kSuffixes = {"", "#master", "#m", "#v"};
  return kSuffixes.at(static_cast<size_t>(quantity));
}

const StoredTensor* Manifest::find(std::string_view tensor, Quantity quantity) const {
  const auto before = [](const StoredTensor& left, const std::pair<std::string_view, Quantity>& right) {
    return std::pair<std::string_view, Quantity>(left.tensor, left.quantity) < right;
  };
  const auto found = std::lower_bound(tensors.begin(), tensors.end(), std::pair(tensor, quantity), before);
  return found != tensors.end() && found->tensor == tensor && found->quantity == quantity ? &*found : nullptr;
}

int64_t Manifest::data_bytes() const {
  int64_t sum = 0;
  for (const StoredFile& file : files) sum += file.bytes;
  return sum;
}

void check_manifest(const Manifest& manifest, const std::string& source) {
  std::set<std::string> names;
  for (const StoredFile& file : manifest.files) {
    if (!is_plain_file_name(file.name) || !names.insert(file.name).second) {
      throw_bad_input(source, "file name '" + file.name + "' is not plain or occurs twice", kMend);
    }
    if (manifest.sealed && file.header_digest == kNoDigestText)
      throw_bad_input(source, "file '" + file.name + "' has no digest", kMend);
  }
  if (manifest.tensors.empty()) throw_bad_input(source, "holds no tensors", kMend);
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    const StoredTensor& tensor = manifest.tensors[i];
    if (i > 0 && !(order_of(manifest.tensors[i - 1]) < order_of(tensor)))
      fail(source, tensor.full_name(), "occurs twice");
    if (manifest.sealed && tensor.digest == kNoDigestText) fail(source, tensor.full_name(), "has no digest");
    check_shape(tensor, source);
    for (const Slab& slab : tensor.slabs) check_slab(manifest, tensor, slab, source);
    check_cover(tensor, source);
  }
}

Manifest join_parts(const std::vector<RankPart>& parts, const RunState& state, int64_t piece_bytes,
                    const std::string& source) {
  Manifest manifest;
  manifest.state = state;
  manifest.piece_bytes = piece_bytes;
  std::map<std::pair<std::string, Quantity>, std::pair<StoredTensor, ElementSum>> joined;
  for (const RankPart& part : parts) {
    const auto first_file = static_cast<int32_t>(manifest.files.size());
    manifest.files.insert(manifest.files.end(), part.files.begin(), part.files.end());
    ensure(part.sums.size() == part.tensors.size(), "every tensor of a rank has its sum");
    for (size_t i = 0; i < part.tensors.size(); ++i) {
      StoredTensor tensor = part.tensors[i];
      for (Slab& slab : tensor.slabs) slab.file += first_file;
      const auto [at, added] = joined.try_emplace({tensor.tensor, tensor.quantity}, tensor, part.sums[i]);
      if (added) continue;
      StoredTensor& whole = at->second.first;
      if (whole.shape != tensor.shape || whole.dtype != tensor.dtype)
        fail(source, tensor.full_name(), "differs between ranks");
      whole.slabs.insert(whole.slabs.end(), tensor.slabs.begin(), tensor.slabs.end());
      at->second.second += part.sums[i];
    }
  }
  std::map<std::string, std::string> parameter_digests;
  for (auto& [key, tensor_and_sum] : joined) {
    auto& [tensor, sum] = tensor_and_sum;
    tensor.digest = hex_of(sum);
    std::sort(tensor.slabs.begin(), tensor.slabs.end(), [](const Slab& a, const Slab& b) { return a.part < b.part; });
    if (tensor.quantity == Quantity::parameter) parameter_digests[tensor.tensor] = tensor.digest;
    manifest.tensors.push_back(std::move(tensor));
  }
  manifest.parameters_digest = combine_digests(parameter_digests);
  check_manifest(manifest, source);
  return manifest;
}

}  // namespace foresail
