// foresail.machine/1
#include <algorithm>

#include "core/json.h"
#include "spec/forms_json.h"
#include "spec/machine.h"

namespace foresail {
namespace {

constexpr const char* kSchema = "foresail.machine/1";
constexpr double kMostFigure = 1e24;  // bytes, FLOP/s, watts, USD: beyond any machine there is
constexpr double kMostSeconds = 1e9;

Json sourced_form(const Sourced& figure) { return {{"value", figure.value}, {"source", figure.source}}; }

Sourced sourced_from(const JsonObject& object, const std::string& key, double most) {
  if (!object.has(key)) return {};
  const JsonObject figure = object.require_object(key);
  figure.refuse_unknown_keys({"value", "source"});
  return {figure.require_number("value", 0, most), figure.get_string("source", "")};
}

Json link_form(const LinkSpec& link) {
  return {{"bytes_per_second", sourced_form(link.bytes_per_second)},
          {"latency_seconds", sourced_form(link.latency_seconds)}};
}

LinkSpec link_from(const JsonObject& object, const std::string& key) {
  if (!object.has(key)) return {};
  const JsonObject link = object.require_object(key);
  link.refuse_unknown_keys({"bytes_per_second", "latency_seconds"});
  return {sourced_from(link, "bytes_per_second", kMostFigure), sourced_from(link, "latency_seconds", kMostSeconds)};
}

Json device_form(const DeviceSpec& device) {
  Json peaks = Json::object();
  for (const auto& [dtype, figure] : device.peak_flops_per_second) peaks[dtype] = sourced_form(figure);
  return {{"name", device.name},
          {"peak_flops_per_second", peaks},
          {"memory_bytes", sourced_form(device.memory_bytes)},
          {"memory_bytes_per_second", sourced_form(device.memory_bytes_per_second)},
          {"multiprocessors", sourced_form(device.multiprocessors)},
          {"watts", sourced_form(device.watts)}};
}

DeviceSpec device_from(const JsonObject& object) {
  object.refuse_unknown_keys(
      {"name", "peak_flops_per_second", "memory_bytes", "memory_bytes_per_second", "multiprocessors", "watts"});
  DeviceSpec device;
  device.name = object.require_string("name");
  if (object.has("peak_flops_per_second")) {
    const JsonObject peaks = object.require_object("peak_flops_per_second");
    peaks.refuse_unknown_keys({"f64", "f32", "bf16", "f16"});
    for (const std::string& dtype : peaks.keys()) {
      device.peak_flops_per_second[dtype] = sourced_from(peaks, dtype, kMostFigure);
    }
  }
  device.memory_bytes = sourced_from(object, "memory_bytes", static_cast<double>(kMostBytes));
  device.memory_bytes_per_second = sourced_from(object, "memory_bytes_per_second", kMostFigure);
  device.multiprocessors = sourced_from(object, "multiprocessors", 1e6);
  device.watts = sourced_from(object, "watts", 1e6);
  return device;
}

Json measurements_form(const std::map<std::string, Measurement>& measurements) {
  // Appended in the map's order: operator[] of an ordered object would search all earlier keys.
  Json form = Json::object();
  auto& members = static_cast<Json::object_t::Container&>(form.get_ref<Json::object_t&>());
  for (const auto& [name, m] : measurements) {
    members.emplace_back(name, Json{{"seconds", m.seconds}, {"spread", m.spread}, {"samples", m.samples}});
  }
  return form;
}

std::map<std::string, Measurement> measurements_from(const JsonObject& object, const std::string& key) {
  std::map<std::string, Measurement> measurements;
  if (!object.has(key)) return measurements;
  const JsonObject all = object.require_object(key);
  for (const auto& [name, value] : all.raw().items()) {
    const JsonObject one(value, all.source(), all.path_of(name));
    one.refuse_unknown_keys({"seconds", "spread", "samples"});
    measurements[name] = {one.require_number("seconds", 0, kMostSeconds), one.get_number("spread", 0, 0, 1e6),
                          static_cast<int32_t>(one.get_int("samples", 0, 0, 1'000'000'000))};
  }
  return measurements;
}

Json table_form(const ProfileTable& table) {
  return {{"ranks", table.ranks},
          {"threads", table.threads},
          {"copy_bytes_per_second", table.copy_bytes_per_second},
          {"peak_flops_per_second", table.peak_flops_per_second},
          {"ops", measurements_form(table.ops)},
          {"ops_in_sequence", measurements_form(table.ops_in_sequence)},
          {"collectives", measurements_form(table.collectives)}};
}

ProfileTable table_from(const JsonObject& object) {
  object.refuse_unknown_keys(
      {"ranks", "threads", "copy_bytes_per_second", "peak_flops_per_second", "ops", "ops_in_sequence", "collectives"});
  ProfileTable table;
  table.ranks = static_cast<int32_t>(object.require_int("ranks", 1, kMostDevices));
  table.threads = static_cast<int32_t>(object.require_int("threads", 1, 1 << 16));
  table.copy_bytes_per_second = object.get_number("copy_bytes_per_second", 0, 0, kMostFigure);
  table.peak_flops_per_second = object.get_number("peak_flops_per_second", 0, 0, kMostFigure);
  table.ops = measurements_from(object, "ops");
  table.ops_in_sequence = measurements_from(object, "ops_in_sequence");
  table.collectives = measurements_from(object, "collectives");
  return table;
}

/// Figures of the machine itself, in the document's order.
struct FigureKey {
  const char* name;
  Sourced Machine::*field;
};
constexpr FigureKey kFigures[] = {{"usd_per_device_hour", &Machine::usd_per_device_hour},
                                  {"failures_per_device_day", &Machine::failures_per_device_day},
                                  {"disk_write_bytes_per_second", &Machine::disk_write_bytes_per_second},
                                  {"disk_read_bytes_per_second", &Machine::disk_read_bytes_per_second},
                                  {"data_read_tokens_per_second", &Machine::data_read_tokens_per_second}};

/// What the cost model of a catalogue machine divides by.
void require_catalogue_figures(const JsonObject& object, const Machine& machine) {
  const auto require = [&](const std::string& key, const Sourced& figure) {
    if (!(figure.value > 0)) object.fail(key, "is missing or zero", "a catalogue machine needs it");
  };
  if (machine.device.peak_flops_per_second.empty()) {
    object.fail("device.peak_flops_per_second", "is missing or empty", "a catalogue machine needs one dtype or more");
  }
  for (const auto& [dtype, figure] : machine.device.peak_flops_per_second) {
    require("device.peak_flops_per_second." + dtype, figure);
  }
  require("device.memory_bytes", machine.device.memory_bytes);
  require("device.memory_bytes_per_second", machine.device.memory_bytes_per_second);
  if (machine.devices_per_node > 1) require("intra_node.bytes_per_second", machine.intra_node.bytes_per_second);
  if (machine.devices > machine.devices_per_node) {
    require("inter_node.bytes_per_second", machine.inter_node.bytes_per_second);
  }
}

void read_profile(const JsonObject& object, Machine& machine) {
  machine.cores = static_cast<int32_t>(object.get_int("cores", 0, 0, 1 << 16));
  machine.host = object.get_string("host", "");
  machine.cpu_model = object.get_string("cpu_model", "");
  machine.profiled_at = object.get_string("profiled_at", "");
  machine.versions = string_map_from(object, "versions");
  for (const JsonObject& table : object.get_objects("tables")) {
    machine.tables.push_back(table_from(table));
    const ProfileTable& added = machine.tables.back();
    const auto same = [&](const ProfileTable& t) { return t.ranks == added.ranks && t.threads == added.threads; };
    if (std::count_if(machine.tables.begin(), machine.tables.end(), same) > 1) {
      table.fail("ranks", "with these threads is in an earlier table too", "remove one");
    }
  }
  machine.workspace_bytes = int_map_from(object, "workspace_bytes", 0, kMostBytes);
  machine.framework_bytes = object.get_int("framework_bytes", 0, 0, kMostBytes);
  machine.framework_bytes_spread = object.get_int("framework_bytes_spread", 0, 0, kMostBytes);
  if (machine.kind == "profiled" && machine.tables.empty()) {
    object.fail("tables", "is missing or empty in a profiled machine", "profile again");
  }
}

}  // namespace

std::string machine_to_json(const Machine& machine) {
  Json form = {{"schema", kSchema},
               {"name", machine.name},
               {"kind", machine.kind},
               {"device", device_form(machine.device)},
               {"devices", machine.devices},
               {"devices_per_node", machine.devices_per_node},
               {"intra_node", link_form(machine.intra_node)},
               {"inter_node", link_form(machine.inter_node)}};
  for (const FigureKey& figure : kFigures) form[figure.name] = sourced_form(machine.*figure.field);
  form["framework_bytes"] = machine.framework_bytes;
  form["framework_bytes_spread"] = machine.framework_bytes_spread;
  form["cores"] = machine.cores;
  form["host"] = machine.host;
  form["cpu_model"] = machine.cpu_model;
  form["profiled_at"] = machine.profiled_at;
  form["versions"] = machine.versions;
  form["workspace_bytes"] = machine.workspace_bytes;
  form["tables"] = Json::array();
  for (const ProfileTable& table : machine.tables) form["tables"].push_back(table_form(table));
  return json_text(form);
}

Machine machine_from_json(const std::string& text, const std::string& source) {
  const Json value = parse_json(text, source);
  const JsonObject object(value, source);
  object.require_schema(kSchema);
  object.refuse_unknown_keys({"schema",
                              "name",
                              "kind",
                              "device",
                              "devices",
                              "devices_per_node",
                              "intra_node",
                              "inter_node",
                              "usd_per_device_hour",
                              "failures_per_device_day",
                              "disk_write_bytes_per_second",
                              "disk_read_bytes_per_second",
                              "data_read_tokens_per_second",
                              "framework_bytes",
                              "framework_bytes_spread",
                              "cores",
                              "host",
                              "cpu_model",
                              "profiled_at",
                              "versions",
                              "workspace_bytes",
                              "tables"});
  Machine machine;
  machine.name = object.require_string("name");
  machine.kind = object.get_string("kind", machine.kind);
  if (machine.kind != "catalogue" && machine.kind != "profiled") {
    object.fail("kind", "'" + machine.kind + "' is unknown", "use catalogue or profiled");
  }
  machine.device = device_from(object.require_object("device"));
  machine.devices = object.require_int("devices", 1, kMostDevices);
  machine.devices_per_node = object.require_int("devices_per_node", 1, 1 << 16);
  machine.intra_node = link_from(object, "intra_node");
  machine.inter_node = link_from(object, "inter_node");
  for (const FigureKey& figure : kFigures) machine.*figure.field = sourced_from(object, figure.name, kMostFigure);
  read_profile(object, machine);
  if (machine.kind == "catalogue") require_catalogue_figures(object, machine);
  return machine;
}

}  // namespace foresail
