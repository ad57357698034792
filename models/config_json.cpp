// Hugging Face config.json: which family it is, what no family supports, and the way back.
#include <algorithm>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "core/log.h"
#include "models/family_json.h"

namespace foresail {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

std::string known_families() {
  std::vector<std::string> names;
  for (const Family* family : families()) {
    names.push_back(fmt::format("{} ({})", family->name, family->architectures.front()));
  }
  return fmt::format("use one of {}", fmt::join(names, ", "));
}

std::vector<std::string> architectures_of(const JsonObject& config) {
  const std::string key = "architectures";
  if (!config.has(key)) return {};
  const Json& list = config.raw().at(key);
  const bool strings =
      list.is_array() && std::all_of(list.begin(), list.end(), [](const Json& e) { return e.is_string(); });
  if (!strings) config.fail(key, "is not a list of names", "write [\"LlamaForCausalLM\"] or the like");
  return list.get<std::vector<std::string>>();
}

/// Old files spell LLaMAForCausalLM, so case does not count.
bool has_architecture(const Family& family, const std::string& name) {
  return std::any_of(family.architectures.begin(), family.architectures.end(),
                     [&](std::string_view known) { return lower(known) == lower(name); });
}

/// model_type decides; architectures must not contradict it, and decides alone where model_type is missing.
const Family& family_of(const JsonObject& config) {
  const std::string type = config.get_string("model_type", "");
  const std::vector<std::string> architectures = architectures_of(config);
  if (type.empty() && architectures.empty()) config.fail("model_type", "is missing", "state it: " + known_families());
  for (const Family* family : families()) {
    if (!type.empty() && family->name != type) continue;
    const auto fits = [&](const std::string& name) { return has_architecture(*family, name); };
    if (architectures.empty() || std::any_of(architectures.begin(), architectures.end(), fits)) return *family;
    if (!type.empty()) {
      config.fail(
          "architectures",
          fmt::format("'{}' is not an architecture of {} that is known here", fmt::join(architectures, ", "), type),
          known_families());
    }
  }
  if (!type.empty()) config.fail("model_type", fmt::format("unknown architecture '{}'", type), known_families());
  config.fail("architectures", fmt::format("unknown architecture '{}'", fmt::join(architectures, ", ")),
              known_families());
}

/// What changes the model but is none of any family's supported keys.
void refuse_features(const Family& family, const JsonObject& config) {
  if (config.has("quantization_config") && family.reads_quantization) {
    log_warning("{}: quantization_config is not read: its weights are taken to be unquantized", config.source());
  } else if (config.has("quantization_config")) {
    config.fail("quantization_config", "quantized weights cannot be trained",
                "use the config of the unquantized model");
  }
  for (const std::string key : {"num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size"}) {
    if (config.has(key) && !family.reads_experts) {
      config.fail(key, fmt::format("{} has no mixture of experts", family.name), "use a dense model");
    }
  }
  if (config.get_bool("is_encoder_decoder", false)) {
    config.fail("is_encoder_decoder", "encoder-decoder models are not supported", "use a decoder-only model");
  }
  for (const std::string key : {"dtype", "torch_dtype"}) config.get_string(key, "");  // any name, but a name
}

/// The folder of ".../NAME/config.json", the stem of any other file.
std::string name_from(const std::string& source) {
  const std::filesystem::path path(source);
  if (path.filename() != "config.json") return path.stem().string();
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error);
  const std::string folder = error ? "" : whole.lexically_normal().parent_path().filename().string();
  return folder.empty() ? "config" : folder;
}

}  // namespace

ModelSpec parse_model_config(const std::string& json_text, const std::string& source) {
  const Json json = parse_json(json_text, source);
  const JsonObject config(json, source);
  const Family& family = family_of(config);
  refuse_features(family, config);
  ModelSpec model = family.read(config);
  model.family = family.name;
  model.name = name_from(source);
  return model;
}

std::string write_model_config(const ModelSpec& model) {
  const auto all = families();
  const auto family = std::find_if(all.begin(), all.end(), [&](const Family* f) { return f->name == model.family; });
  ensure(family != all.end(), "a ModelSpec names a known family");
  Json config = Json::object();
  config["architectures"] = {(*family)->architectures.front()};
  config["model_type"] = (*family)->name;
  (*family)->write(model, config);
  // A ModelSpec knows no special tokens; null keeps readers from assuming their family's.
  config["bos_token_id"] = nullptr;
  config["eos_token_id"] = nullptr;
  config["torch_dtype"] = "float32";
  config["dtype"] = "float32";
  return json_text(config);
}

}  // namespace foresail
