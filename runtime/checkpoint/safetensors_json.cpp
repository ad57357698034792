#include <algorithm>
#include <tuple>

#include "core/error.h"
#include "core/json.h"
#include "runtime/checkpoint/safetensors.h"

namespace foresail {
namespace {

constexpr const char* kMetadataKey = "__metadata__";
constexpr const char* kMend = "the file is damaged or not safetensors: fetch or write it again";

[[noreturn]] void fail_tensor(const std::string& source, const std::string& name, const std::string& cause) {
  throw_bad_input(source, "tensor '" + name + "' " + cause, kMend);
}

// A JSON array of non-negative integers below 2^63.
std::vector<int64_t> extents(const Json& value, const std::string& source, const std::string& name, const char* key) {
  if (!value.is_array()) fail_tensor(source, name, std::string("has no list '") + key + "'");
  std::vector<int64_t> result;
  result.reserve(value.size());
  for (const Json& item : value) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      fail_tensor(source, name, std::string("has a value in '") + key + "' that is no count");
    }
    result.push_back(item.get<int64_t>());
  }
  return result;
}

const Json& member(const Json& value, const char* key, const std::string& source, const std::string& name) {
  const auto found = value.find(key);
  if (found == value.end()) fail_tensor(source, name, std::string("lacks '") + key + "'");
  return *found;
}

// Checked: bits x product of the extents, in bytes.
int64_t bytes_of(const TensorEntry& entry, const std::string& source) {
  const auto bits = safetensors_bits(entry.type);
  if (!bits) fail_tensor(source, entry.name, "has unknown dtype '" + entry.type + "'");
  int64_t total_bits = *bits;
  // A zero extent makes the product zero whatever the order of the extents: overflow is judged on the others alone.
  if (std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end()) return 0;
  for (const int64_t extent : entry.shape) {
    if (__builtin_mul_overflow(total_bits, extent, &total_bits)) fail_tensor(source, entry.name, "has an absurd shape");
  }
  if (total_bits % 8 != 0) fail_tensor(source, entry.name, "does not end on a byte");
  return total_bits / 8;
}

TensorEntry parse_entry(const std::string& name, const Json& value, int64_t data_bytes, const std::string& source) {
  if (!value.is_object()) fail_tensor(source, name, "is not described by an object");
  TensorEntry entry;
  entry.name = name;
  const Json& dtype = member(value, "dtype", source, name);
  if (!dtype.is_string()) fail_tensor(source, name, "has a dtype that is no string");
  entry.type = dtype.get<std::string>();
  entry.shape = extents(member(value, "shape", source, name), source, name, "shape");
  const auto offsets = extents(member(value, "data_offsets", source, name), source, name, "data_offsets");
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes) {
    fail_tensor(source, name, "has data_offsets outside the file");
  }
  entry.offset = offsets[0];
  entry.bytes = offsets[1] - offsets[0];
  if (entry.bytes != bytes_of(entry, source)) fail_tensor(source, name, "has data_offsets that do not match its shape");
  return entry;
}

std::map<std::string, std::string> parse_metadata(const Json& value, const std::string& source) {
  if (!value.is_object()) throw_bad_input(source, "__metadata__ is not an object", kMend);
  std::map<std::string, std::string> result;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) throw_bad_input(source, "__metadata__ '" + key + "' is not a string", kMend);
    result.emplace(key, text.get<std::string>());
  }
  return result;
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes, const std::string& source) {
  if (json.empty() || json.front() != '{') throw_bad_input(source, "the header does not start with '{'", kMend);
  json = json.substr(0, json.find_last_not_of(' ') + 1);
  if (json.back() != '}') throw_bad_input(source, "the header does not end with '}'", kMend);
  const Json root = parse_json(json, source + ": header");
  SafetensorsHeader header;
  for (const auto& [name, value] : root.items()) {
    if (name == kMetadataKey) {
      header.metadata = parse_metadata(value, source);
    } else {
      header.tensors.push_back(parse_entry(name, value, data_bytes, source));
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorEntry& left, const TensorEntry& right) {
    return std::tie(left.offset, left.bytes, left.name) < std::tie(right.offset, right.bytes, right.name);
  });
  int64_t end = 0;
  for (const TensorEntry& entry : header.tensors) {
    if (entry.offset != end)
      fail_tensor(source, entry.name, entry.offset < end ? "overlaps another" : "leaves a hole before it");
    end = entry.offset + entry.bytes;
  }
  if (end != data_bytes) {
    throw_bad_input(
        source, "holds " + std::to_string(data_bytes) + " bytes of data, its header describes " + std::to_string(end),
        kMend);
  }
  return header;
}

std::string format_safetensors_header(std::span<const TensorEntry> tensors,
                                      const std::map<std::string, std::string>& metadata) {
  // Composed from dumped members, because a Json object would silently merge two entries of one name.
  std::string text = "{";
  const auto add = [&text](const std::string& key, const Json& value) {
    if (text.size() > 1) text += ',';
    try {
      text += Json(key).dump() + ':' + value.dump();
    } catch (const Json::exception&) {
      throw_bad_input("safetensors header", "a name or metadata text is not UTF-8", "rename the tensor");
    }
  };
  if (!metadata.empty()) add(kMetadataKey, Json(metadata));
  for (const TensorEntry& entry : tensors) {
    add(entry.name, Json{{"dtype", entry.type},
                         {"shape", entry.shape},
                         {"data_offsets", {entry.offset, entry.offset + entry.bytes}}});
  }
  return text + '}';
}

}  // namespace foresail
