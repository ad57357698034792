#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

#include "core/digest.h"
#include "core/error.h"
#include "core/json.h"
#include "runtime/checkpoint/manifest.h"

namespace foresail {
namespace {

constexpr const char* kSchema = "foresail.checkpoint/1";
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
// Where the digest of the text stands while that digest is computed.
constexpr std::string_view kDigestPrefix = "\"manifest_digest\": \"";
const std::string kNoDigest(32, '0');

Json rectangle_to_json(const Rectangle& part) {
  return Json::array({part.row_begin, part.row_end, part.column_begin, part.column_end});
}

Json tensor_to_json(const StoredTensor& tensor, const std::vector<StoredFile>& files) {
  Json slabs = Json::array();
  for (const Slab& slab : tensor.slabs) {
    slabs.push_back({{"part", rectangle_to_json(slab.part)},
                     {"file", files[static_cast<size_t>(slab.file)].name},
                     {"name", slab.name},
                     {"offset", slab.offset},
                     {"pieces", slab.pieces}});
  }
  return Json{{"tensor", tensor.tensor},        {"quantity", std::string(name_of(tensor.quantity))},
              {"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape},
              {"digest", tensor.digest},        {"slabs", slabs}};
}

Json file_to_json(const StoredFile& file) {
  return Json{{"name", file.name}, {"bytes", file.bytes}, {"header_digest", file.header_digest}};
}

StoredFile file_from_json(const JsonObject& object) {
  return {object.require_string("name"), object.require_int("bytes", 1, kMost), object.require_string("header_digest")};
}

Quantity quantity_from_json(const JsonObject& object) {
  const std::string name = object.require_string("quantity");
  for (const Quantity quantity : {Quantity::parameter, Quantity::master, Quantity::moment1, Quantity::moment2}) {
    if (name == name_of(quantity)) return quantity;
  }
  object.fail("quantity", "'" + name + "' is unknown", "use a checkpoint of this version of foresail");
}

Slab slab_from_json(const JsonObject& object, const std::vector<StoredFile>& files) {
  Slab slab;
  const std::vector<int64_t> part = object.get_ints("part");
  if (part.size() != 4)
    object.fail("part", "is not a list of four numbers", "the manifest is damaged: use another checkpoint");
  slab.part = {part[0], part[1], part[2], part[3]};
  const std::string file = object.require_string("file");
  const auto found =
      std::find_if(files.begin(), files.end(), [&](const StoredFile& known) { return known.name == file; });
  if (found == files.end())
    object.fail("file", "'" + file + "' is not listed", "the manifest is damaged: use another checkpoint");
  slab.file = static_cast<int32_t>(found - files.begin());
  slab.name = object.require_string("name");
  slab.offset = object.require_int("offset", 0, kMost);
  slab.pieces = object.get_strings("pieces");
  return slab;
}

StoredTensor tensor_from_json(const JsonObject& object, const std::vector<StoredFile>& files) {
  StoredTensor tensor;
  tensor.tensor = object.require_string("tensor");
  tensor.quantity = quantity_from_json(object);
  const std::string dtype = object.require_string("dtype");
  const auto known = dtype_from_name(dtype);
  if (!known) object.fail("dtype", "'" + dtype + "' is unknown", "use a checkpoint of this version of foresail");
  tensor.dtype = *known;
  tensor.shape = object.get_ints("shape");
  tensor.digest = object.require_string("digest");
  for (const JsonObject& slab : object.get_objects("slabs")) tensor.slabs.push_back(slab_from_json(slab, files));
  return tensor;
}

Json state_to_json(const RunState& state) {
  Json losses = Json::array();
  for (const StepLoss& entry : state.losses) losses.push_back({{"step", entry.step}, {"loss", entry.loss}});
  return Json{{"step", state.step},
              {"samples_consumed", state.samples_consumed},
              {"seed", state.seed},
              {"foresail_version", state.foresail_version},
              {"plan_digest", state.plan_digest},
              {"dataset_identity", state.dataset_identity},
              {"model_name", state.model_name},
              {"model_config", state.model_config},
              {"losses", losses},
              {"notes", state.notes}};
}

// A seed may use all 64 bits, more than JsonObject's integers.
uint64_t seed_from_json(const JsonObject& object) {
  const auto found = object.raw().find("seed");
  if (found == object.raw().end() || !found->is_number_unsigned()) {
    object.fail("seed", "is no unsigned integer", "the manifest is damaged: use another checkpoint");
  }
  return found->get<uint64_t>();
}

RunState state_from_json(const JsonObject& object) {
  constexpr double kLargest = std::numeric_limits<double>::max();
  RunState state;
  state.step = object.require_int("step", 0, kMost);
  state.samples_consumed = object.require_int("samples_consumed", 0, kMost);
  state.seed = seed_from_json(object);
  state.foresail_version = object.require_string("foresail_version");
  state.plan_digest = object.require_string("plan_digest");
  state.dataset_identity = object.require_string("dataset_identity");
  state.model_name = object.require_string("model_name");
  state.model_config = object.require_string("model_config");
  for (const JsonObject& entry : object.get_objects("losses")) {
    state.losses.push_back({entry.require_int("step", 0, kMost), entry.require_number("loss", -kLargest, kLargest)});
  }
  if (!object.has("notes")) return state;
  const JsonObject notes = object.require_object("notes");
  for (const std::string& key : notes.keys()) state.notes[key] = notes.require_string(key);
  return state;
}

// The text with its digest blanked, or nothing if the digest has no such place.
std::optional<std::string> without_digest(std::string text) {
  const size_t at = text.find(kDigestPrefix);
  if (at == std::string::npos || at + kDigestPrefix.size() + kNoDigest.size() > text.size()) return std::nullopt;
  return text.replace(at + kDigestPrefix.size(), kNoDigest.size(), kNoDigest);
}

std::vector<StoredFile> files_from_json(const JsonObject& root) {
  std::vector<StoredFile> files;
  for (const JsonObject& file : root.get_objects("files")) files.push_back(file_from_json(file));
  return files;
}

}  // namespace

std::string manifest_to_json(const Manifest& manifest) {
  Json root;
  root["schema"] = kSchema;
  root["manifest_digest"] = kNoDigest;
  root["state"] = state_to_json(manifest.state);
  root["parameters_digest"] = manifest.parameters_digest;
  root["piece_bytes"] = manifest.piece_bytes;
  root["files"] = Json::array();
  for (const StoredFile& file : manifest.files) root["files"].push_back(file_to_json(file));
  root["tensors"] = Json::array();
  for (const StoredTensor& tensor : manifest.tensors) root["tensors"].push_back(tensor_to_json(tensor, manifest.files));
  return seal_manifest(json_text(root));
}

std::string seal_manifest(std::string text) {
  std::optional<std::string> blanked = without_digest(std::move(text));
  ensure(blanked.has_value(), "a manifest has a place for its digest");
  const std::string digest = digest_of(*blanked);
  return blanked->replace(blanked->find(kDigestPrefix) + kDigestPrefix.size(), kNoDigest.size(), digest);
}

Manifest manifest_from_json(const std::string& text, const std::string& source) {
  const Json value = parse_json(text, source);
  const JsonObject root(value, source);
  root.require_schema(kSchema);
  const std::string stated = root.require_string("manifest_digest");
  Manifest manifest;
  manifest.sealed = stated != kNoDigestText;
  const auto blanked = without_digest(text);
  if (manifest.sealed && (!blanked || digest_of(*blanked) != stated)) {
    throw_bad_input(source, "was changed after it was written (its digest differs)",
                    "the checkpoint is damaged: use another one");
  }
  constexpr int64_t kLeastPieceBytes = 64, kMostPieceBytes = int64_t{64} << 20;
  manifest.state = state_from_json(root.require_object("state"));
  manifest.parameters_digest = root.require_string("parameters_digest");
  manifest.piece_bytes = root.require_int("piece_bytes", kLeastPieceBytes, kMostPieceBytes);
  if (manifest.piece_bytes % 8 != 0) root.fail("piece_bytes", "is no multiple of 8", "use another checkpoint");
  manifest.files = files_from_json(root);
  for (const JsonObject& tensor : root.get_objects("tensors")) {
    manifest.tensors.push_back(tensor_from_json(tensor, manifest.files));
  }
  check_manifest(manifest, source);
  return manifest;
}

std::string rank_part_to_json(const RankPart& part) {
  Json root;
  root["files"] = Json::array();
  for (const StoredFile& file : part.files) root["files"].push_back(file_to_json(file));
  root["tensors"] = Json::array();
  root["sums"] = Json::array();
  for (const StoredTensor& tensor : part.tensors) root["tensors"].push_back(tensor_to_json(tensor, part.files));
  for (const ElementSum& sum : part.sums) root["sums"].push_back(hex_of(sum));
  return root.dump();
}

RankPart rank_part_from_json(const std::string& text, const std::string& source) {
  const Json value = parse_json(text, source);
  const JsonObject root(value, source);
  RankPart part;
  part.files = files_from_json(root);
  for (const JsonObject& tensor : root.get_objects("tensors"))
    part.tensors.push_back(tensor_from_json(tensor, part.files));
  for (const std::string& hex : root.get_strings("sums")) {
    ElementSum sum;
    ensure(hex.size() == 32, "a sum has 32 digits");
    std::from_chars(hex.data(), hex.data() + 16, sum.high, 16);
    std::from_chars(hex.data() + 16, hex.data() + 32, sum.low, 16);
    part.sums.push_back(sum);
  }
  return part;
}

}  // namespace foresail
