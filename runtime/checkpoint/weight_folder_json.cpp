#include <fmt/format.h>

#include "core/error.h"
#include "core/json.h"
#include "runtime/checkpoint/weight_folder.h"

namespace foresail {
namespace {

constexpr int64_t kMostLayers = 4096;

/// As torch calls them.
std::string_view torch_name(DType dtype) {
  switch (dtype) {
    case DType::f64: return "float64";
    case DType::f32: return "float32";
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    case DType::i32: return "int32";
  }
  return "";
}

bool belongs_to_run(const std::string& key) {
  return key.find("drop") != std::string::npos || key == "initializer_range" || key == "torch_dtype" || key == "dtype";
}

}  // namespace

WeightIndex weight_index_from_json(const std::string& text, const std::string& source) {
  const Json value = parse_json(text, source);
  const JsonObject root(value, source);
  const JsonObject map = root.require_object("weight_map");
  WeightIndex index;
  for (const auto& [tensor, file] : map.raw().items()) {
    if (!file.is_string()) {
      throw_bad_input(source, fmt::format("the file of tensor '{}' is no name", tensor), "write the index again");
    }
    index.files.emplace(tensor, file.get<std::string>());
  }
  if (index.files.empty()) throw_bad_input(source, "its weight_map names no tensor", "write the index again");
  return index;
}

std::string weight_index_to_json(const WeightIndex& index) {
  Json map = Json::object();
  for (const auto& [tensor, file] : index.files) map[tensor] = file;
  return json_text(Json{{"metadata", {{"total_size", index.total_bytes}}}, {"weight_map", map}});
}

int64_t prediction_layers(const std::string& config, const std::string& source) {
  const Json value = parse_json(config, source);
  return JsonObject(value, source).get_int("num_nextn_predict_layers", 0, 0, kMostLayers);
}

std::string with_dtype(const std::string& config, DType dtype, const std::string& source) {
  Json value = parse_json(config, source);
  if (!value.is_object()) throw_bad_input(source, "is no object", "use the config.json of the model");
  value["torch_dtype"] = torch_name(dtype);
  value["dtype"] = torch_name(dtype);
  return json_text(value);
}

std::vector<std::string> config_differences(const std::string& folder, const std::string& plan) {
  const Json in_folder = parse_json(folder, "the folder's config.json");
  const Json in_plan = parse_json(plan, "the plan's model");
  std::vector<std::string> lines;
  for (const auto& [key, value] : in_folder.items()) {
    if (belongs_to_run(key)) continue;
    const auto other = in_plan.find(key);
    const std::string own = other == in_plan.end() ? "none" : other->dump();
    if (own != value.dump()) lines.push_back(fmt::format("{} is {}, in the plan {}", key, value.dump(), own));
  }
  for (const auto& [key, value] : in_plan.items()) {
    if (belongs_to_run(key) || in_folder.contains(key)) continue;
    lines.push_back(fmt::format("{} is not stated, in the plan {}", key, value.dump()));
  }
  return lines;
}

}  // namespace foresail
