// foresail.stack/1
#include "core/json.h"
#include "spec/forms_json.h"
#include "spec/machine.h"

namespace foresail {
namespace {

constexpr const char* kSchema = "foresail.stack/1";

struct ConstantKey {
  const char* name;
  double Stack::*field;
  double least, most;
};
constexpr ConstantKey kConstants[] = {{"matrix_efficiency", &Stack::matrix_efficiency, 1e-3, 1},
                                      {"memory_efficiency", &Stack::memory_efficiency, 1e-3, 1},
                                      {"intra_node_efficiency", &Stack::intra_node_efficiency, 1e-3, 1},
                                      {"inter_node_efficiency", &Stack::inter_node_efficiency, 1e-3, 1},
                                      {"launch_seconds", &Stack::launch_seconds, 0, 1},
                                      {"collective_seconds", &Stack::collective_seconds, 0, 1}};

struct FlagKey {
  const char* name;
  bool Stack::*field;
};
constexpr FlagKey kFlags[] = {{"sequence_parallel_default", &Stack::sequence_parallel_default},
                              {"dp_overlap", &Stack::data_parallel_overlap},
                              {"tp_overlap", &Stack::tensor_parallel_overlap},
                              {"fused_kernels", &Stack::fused_kernels}};

/// Switches of the schema that steer parts of the simulated Program that are not built yet.
constexpr const char* kLaterSwitches[] = {"selective_drops", "zero_default",    "bucket_bytes", "reduce_dtype",
                                          "interleave",      "stage_partition", "eager",        "fp8"};

std::string choice_from(const JsonObject& entry, const std::string& name, const std::vector<std::string>& values) {
  const std::string value = entry.require_string("value");
  for (const std::string& known : values) {
    if (value == known) return value;
  }
  std::string list;
  for (const std::string& known : values) list += (list.empty() ? "" : " or ") + known;
  entry.fail("value", "'" + value + "' is unknown for " + name, "use " + list);
}

void read_switch(const std::string& name, const JsonObject& entry, Stack& stack) {
  if (name == "attention") {
    stack.attention = choice_from(entry, name, {"flash", "unfused"});
  } else if (name == "recompute_default") {
    stack.recompute_default = choice_from(entry, name, {"none", "full"});
  } else if (name == "precision") {
    stack.precision = choice_from(entry, name, {"fp32", "bf16", "fp16", "fp64"});
  }
  for (const FlagKey& flag : kFlags) {
    if (name != flag.name) continue;
    if (!entry.has("value")) entry.fail("value", "is missing", "write true or false");
    stack.*flag.field = entry.get_bool("value", false);
  }
}

void read_switches(const JsonObject& switches, Stack& stack) {
  std::vector<std::string> known = {"attention", "recompute_default", "precision"};
  for (const FlagKey& flag : kFlags) known.emplace_back(flag.name);
  for (const char* later : kLaterSwitches) {
    if (switches.has(later)) switches.fail(later, "is not built yet", "remove it");
  }
  switches.refuse_unknown_keys(known);
  for (const std::string& name : switches.keys()) {
    const JsonObject entry = switches.require_object(name);
    entry.refuse_unknown_keys({"value", "source"});
    read_switch(name, entry, stack);
    stack.switch_sources[name] = entry.require_string("source");
  }
}

void read_constants(const JsonObject& constants, Stack& stack) {
  std::vector<std::string> known;
  for (const ConstantKey& constant : kConstants) known.emplace_back(constant.name);
  constants.refuse_unknown_keys(known);
  for (const ConstantKey& constant : kConstants) {
    if (!constants.has(constant.name)) continue;
    const JsonObject entry = constants.require_object(constant.name);
    entry.refuse_unknown_keys({"value", "fitted_on"});
    stack.*constant.field = entry.require_number("value", constant.least, constant.most);
    stack.constant_sources[constant.name] = entry.require_string("fitted_on");
  }
}

}  // namespace

Stack stack_from_json(const std::string& text, const std::string& source) {
  const Json value = parse_json(text, source);
  const JsonObject object(value, source);
  object.require_schema(kSchema);
  object.refuse_unknown_keys({"schema", "name", "sources", "switches", "constants"});
  Stack stack;
  stack.name = object.require_string("name");
  stack.sources = object.get_strings("sources");
  if (object.has("switches")) read_switches(object.require_object("switches"), stack);
  if (object.has("constants")) read_constants(object.require_object("constants"), stack);
  return stack;
}

std::string stack_to_json(const Stack& stack) {
  // A switch or constant without a source is a default of the struct and needs no entry.
  Json switches = Json::object(), constants = Json::object();
  const auto write_switch = [&](const char* name, const Json& value) {
    const auto source = stack.switch_sources.find(name);
    if (source != stack.switch_sources.end()) switches[name] = {{"value", value}, {"source", source->second}};
  };
  write_switch("attention", stack.attention);
  write_switch("recompute_default", stack.recompute_default);
  write_switch("precision", stack.precision);
  for (const FlagKey& flag : kFlags) write_switch(flag.name, stack.*flag.field);
  for (const ConstantKey& constant : kConstants) {
    const auto source = stack.constant_sources.find(constant.name);
    if (source == stack.constant_sources.end()) continue;
    constants[constant.name] = {{"value", stack.*constant.field}, {"fitted_on", source->second}};
  }
  return json_text({{"schema", kSchema},
                    {"name", stack.name},
                    {"sources", Json(stack.sources)},
                    {"switches", switches},
                    {"constants", constants}});
}

}  // namespace foresail
