#include "spec/machine.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "core/error.h"
#include "core/file.h"

namespace foresail {
namespace {

template <typename Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit(), Exit::bad_input);
    return error.what();
  }
  return "";
}

Machine profiled_machine() {
  Machine machine;
  machine.name = "host";
  machine.kind = "profiled";
  machine.device.name = "cpu";
  machine.device.peak_flops_per_second["f32"] = {1.0 / 3, "measured"};
  machine.device.memory_bytes = {8e9, "/proc/meminfo"};
  machine.devices = 2;
  machine.devices_per_node = 2;
  machine.intra_node = {{1e10, "measured"}, {1e-6, "measured"}};
  machine.usd_per_device_hour = {0.05, "user"};
  machine.disk_write_bytes_per_second = {1e9, "measured"};
  machine.cores = 2;
  machine.host = "box";
  machine.cpu_model = "a \"CPU\"";
  machine.profiled_at = "2026-11-30";
  machine.versions = {{"oneDNN", "2.6.3"}, {"Open MPI", "4.1.4"}};
  ProfileTable table;
  table.ranks = 2;
  table.ops["gemm f32 64x64x64"] = {0.1 + 0.2, 0.07, 11};
  table.ops_in_sequence["gemm f32 64x64x64"] = {1e-7, 0, 3};
  table.collectives["all_reduce/2/4096"] = {5e-324, 0.5, 1};
  table.copy_bytes_per_second = 1e10;
  table.peak_flops_per_second = 4e10;
  machine.tables = {ProfileTable{}, table};
  machine.workspace_bytes["gemm f32 64x64x64"] = 4096;
  machine.framework_bytes = 1 << 20;
  machine.framework_bytes_spread = 77;
  return machine;
}

TEST(Machine, ReadsBackBitForBit) {
  const Machine machine = profiled_machine();
  const std::string text = machine_to_json(machine);
  const Machine again = machine_from_json(text, "machine.json");
  EXPECT_EQ(machine_to_json(again), text);
  EXPECT_EQ(again.tables[1].ops.at("gemm f32 64x64x64").seconds, 0.1 + 0.2);
  EXPECT_EQ(again.tables[1].collectives.at("all_reduce/2/4096").seconds, 5e-324);
  EXPECT_EQ(again.device.peak_flops_per_second.at("f32").value, 1.0 / 3);
  EXPECT_EQ(again.workspace_bytes, machine.workspace_bytes);
  EXPECT_EQ(again.versions, machine.versions);
}

/// Replaces the first `from` in a machine's JSON, which must be there.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = machine_to_json(profiled_machine());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Machine, RefusesMisspeltAbsurdAndContradictoryFields) {
  const std::pair<std::string, std::string> changes[] = {
      {"\"devices\": 2", "\"devices\": 0"},
      {"\"devices\": 2", "\"devices\": 2e6"},
      {"\"cores\": 2", "\"cores\": -1"},
      {"\"cores\": 2", "\"kores\": 2"},
      {"\"kind\": \"profiled\"", "\"kind\": \"guessed\""},
      {"\"samples\": 11", "\"samples\": -1"},
      {"\"samples\": 11", "\"sample\": 11"},
      {"\"spread\": 0.07", "\"spread\": -0.07"},
      {"\"spread\": 0.07", "\"spread\": \"0.07\""},
      {"\"ranks\": 2", "\"ranks\": 1"},  // two tables for the same ranks and threads
      {"\"f32\"", "\"f33\""},
      {": 4096", ": -4096"},
      {"foresail.machine/1", "foresail.machine/2"},
  };
  for (const auto& [from, to] : changes) {
    const std::string text = changed(from, to);
    EXPECT_NE(refusal([&] { machine_from_json(text, "machine.json"); }).find("machine.json"), std::string::npos) << to;
  }
  Machine bare;
  bare.kind = "profiled";
  EXPECT_NE(refusal([&] { machine_from_json(machine_to_json(bare), "m"); }), "") << "no tables";
}

TEST(Machine, ACatalogueMachineNeedsWhatItsCostModelDividesBy) {
  const std::string text = machine_to_json(load_machine("dgx-a100-80gb"));
  for (const std::string field : {"memory_bytes", "memory_bytes_per_second", "intra_node"}) {
    std::string without = text;
    const size_t at = without.find("\"value\"", without.find("\"" + field + "\""));
    without.replace(at, without.find(',', at) - at, "\"value\": 0");
    EXPECT_NE(refusal([&] { machine_from_json(without, "m"); }).find("is missing or zero"), std::string::npos) << field;
  }
}

TEST(Machine, TheCatalogueReadsAndGivesASourceForEveryFigure) {
  EXPECT_FALSE(catalogue_machine_names().empty());
  for (const std::string& name : catalogue_machine_names()) {
    const Machine machine = load_machine(name);
    EXPECT_EQ(machine.name, name) << "a file is named after its machine";
    EXPECT_EQ(machine.kind, "catalogue");
    std::vector<Sourced> figures = {machine.device.memory_bytes,         machine.device.memory_bytes_per_second,
                                    machine.device.multiprocessors,      machine.device.watts,
                                    machine.intra_node.bytes_per_second, machine.intra_node.latency_seconds,
                                    machine.inter_node.bytes_per_second, machine.inter_node.latency_seconds,
                                    machine.usd_per_device_hour,         machine.failures_per_device_day};
    for (const auto& [dtype, peak] : machine.device.peak_flops_per_second) figures.push_back(peak);
    for (const Sourced& figure : figures) {
      EXPECT_GT(figure.value, 0) << name;
      EXPECT_FALSE(figure.source.empty()) << name;
    }
  }
}

TEST(Machine, TheA100IsTheDatasheets) {
  const Machine machine = load_machine("dgx-a100-80gb");
  EXPECT_EQ(machine.device.peak_flops_per_second.at("f16").value, 312e12);
  EXPECT_EQ(machine.device.memory_bytes_per_second.value, 2.039e12);
  EXPECT_EQ(machine.intra_node.bytes_per_second.value, 300e9);
  EXPECT_EQ(machine.inter_node.bytes_per_second.value * 8, 8 * 200e9 / 8);
  EXPECT_EQ(machine.devices_per_node, 8);
}

TEST(Machine, LoadsByNameOrPathAndSaysWhatItKnows) {
  const auto path =
      std::filesystem::temp_directory_path() / ("foresail-machine-" + std::to_string(::getpid()) + ".json");
  write_file_atomically(path, machine_to_json(profiled_machine()));
  EXPECT_EQ(load_machine(path.string()).name, "host");
  std::filesystem::remove(path);
  EXPECT_NE(refusal([] { load_machine("dgx-a200"); }).find("dgx-a100-80gb"), std::string::npos);
  EXPECT_NE(refusal([] { load_machine("missing.json"); }).find("cannot be read"), std::string::npos);
  EXPECT_NE(refusal([] { load_machine("/"); }).find("is a folder"), std::string::npos);
  EXPECT_NE(refusal([] { load_machine(""); }), "");
}

TEST(Stack, TheCatalogueReadsBackAndGivesASourceForEverySwitchAndConstant) {
  const std::vector<std::string> names = catalogue_stack_names();
  EXPECT_EQ(names, (std::vector<std::string>{"foresail", "megatron-2021", "megatron-2022"}));
  for (const std::string& name : names) {
    const Stack stack = load_stack(name);
    EXPECT_EQ(stack.name, name);
    EXPECT_EQ(stack.switch_sources.size(), 7u) << name;
    EXPECT_EQ(stack.constant_sources.size(), 6u) << name;
    const std::string text = stack_to_json(stack);
    EXPECT_EQ(stack_to_json(stack_from_json(text, "t")), text);
  }
  EXPECT_EQ(load_stack("megatron-2021").attention, "unfused");
  EXPECT_EQ(load_stack("megatron-2022").recompute_default, "full");
  EXPECT_EQ(load_stack("megatron-2022").precision, "fp16");
  EXPECT_EQ(load_stack("foresail").attention, "flash");
}

TEST(Stack, RefusesUnknownAndUnbuiltSwitchesAndImpossibleConstants) {
  const auto with = [](const std::string& switches, const std::string& constants) {
    return refusal([&] {
      stack_from_json("{\"schema\": \"foresail.stack/1\", \"name\": \"s\", \"switches\": {" + switches +
                          "}, \"constants\": {" + constants + "}}",
                      "stack.json");
    });
  };
  EXPECT_EQ(with("", ""), "");
  EXPECT_NE(with(R"("fp8": {"value": true, "source": "s"})", "").find("is not built yet"), std::string::npos);
  EXPECT_NE(with(R"("attentoin": {"value": "flash", "source": "s"})", "").find("'switches.attentoin'"),
            std::string::npos);
  EXPECT_NE(with(R"("attention": {"value": "quick", "source": "s"})", ""), "");
  EXPECT_NE(with(R"("attention": {"value": "flash"})", ""), "") << "a switch needs its source";
  EXPECT_NE(with(R"("dp_overlap": {"value": "true", "source": "s"})", ""), "");
  EXPECT_NE(with("", R"("matrix_efficiency": {"value": 1.5, "fitted_on": "s"})"), "");
  EXPECT_NE(with("", R"("matrix_efficiency": {"value": 0, "fitted_on": "s"})"), "");
  EXPECT_NE(with("", R"("luck": {"value": 0.5, "fitted_on": "s"})"), "");
}

}  // namespace
}  // namespace foresail
