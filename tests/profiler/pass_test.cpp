#include "profiler/pass.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>

#include "core/file.h"
#include "kernels/device.h"
#include "profiler/candidates.h"
#include "profiler/host.h"
#include "profiler/quality.h"
#include "program/compile.h"

namespace foresail {
namespace {

/// A model that steps in a millisecond.
ModelSpec tiny() {
  ModelSpec model;
  model.name = "tiny";
  model.family = "llama";
  model.layers = 2, model.hidden = 32, model.heads = 2, model.kv_heads = 1, model.head_dim = 16;
  model.ffn = 64, model.vocabulary = 67, model.max_positions = 32;
  return model;
}

class PassTest : public ::testing::Test {
 protected:
  PassTest() {
    folder_ = std::filesystem::temp_directory_path() / ("foresail-profiler-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
    request_.models = {tiny()};
    request_.budget_seconds = 0.5;
    request_.storage = true;
    request_.partial = folder_ / "machine.json.partial";
  }
  ~PassTest() override { std::filesystem::remove_all(folder_); }
  Machine run() {
    auto communicator = make_local_communicator();
    run_pass(request_, *communicator);
    return load_partial(request_.partial);
  }

  std::filesystem::path folder_;
  PassRequest request_;
};

TEST_F(PassTest, MeasuresOpsInSequenceWorkspaceDiskAndFrameworkAndLeavesOnlyItsFile) {
  const Machine machine = run();
  ASSERT_EQ(machine.tables.size(), 1u);
  const ProfileTable& table = machine.tables[0];
  EXPECT_EQ(table.ranks, 1);
  EXPECT_EQ(table.threads, 1);
  EXPECT_GT(table.copy_bytes_per_second, 1e7);
  EXPECT_GT(table.peak_flops_per_second, 1e7);
  const auto device = make_cpu_device(1);
  const WorkspaceOf asked = [&](const OpInstance& op) { return device->workspace_bytes(op); };
  const Program program = compile(tiny(), profiling_job(tiny(), 32, 1), Strategy{}, Target{}, 0, asked).train;
  for (const Block& block : program.blocks) {
    for (const Instruction& instruction : block.instructions) {
      const std::string key = signature(op_instance(block, instruction));
      if (key.starts_with("rope_table")) continue;  // runs once at start, in no step
      ASSERT_TRUE(table.ops_in_sequence.count(key)) << key;
      EXPECT_GT(table.ops_in_sequence.at(key).samples, 0);
    }
  }
  const auto used = used_workspaces(program);
  EXPECT_FALSE(used.empty());
  for (const auto& [key, bytes] : used) {
    ASSERT_TRUE(machine.workspace_bytes.count(key)) << key;
    EXPECT_GE(machine.workspace_bytes.at(key), bytes);
  }
  EXPECT_GT(machine.disk_write_bytes_per_second.value, 1e5);
  EXPECT_GT(machine.disk_read_bytes_per_second.value, 1e5);
  EXPECT_GT(machine.data_read_tokens_per_second.value, 1e3);
  EXPECT_GT(machine.framework_bytes, 1 << 20);
  EXPECT_LT(machine.framework_bytes, int64_t{1} << 30);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "only the partial file";
}

TEST_F(PassTest, KnowsWhichModelsItMeasuredAndWhichNot) {
  const Machine machine = run();
  EXPECT_TRUE(measured_in_sequence(machine, tiny(), 0));
  EXPECT_FALSE(measured_in_sequence(machine, tiny(), 24));
  ModelSpec wide = tiny();
  wide.hidden = 4096, wide.heads = wide.kv_heads = 256;
  EXPECT_FALSE(measured_in_sequence(machine, wide, 0));
}

TEST(TypicalSpread, IsTheMedianOfWhatWasTimedMoreThanOnce) {
  Machine machine;
  EXPECT_EQ(typical_spread(machine), 0);
  ProfileTable& table = machine.tables.emplace_back();
  table.ops["a"] = {1, 0.10, 5};
  table.ops_in_sequence["b"] = {1, 0.20, 5};
  table.collectives["send/2/64"] = {1, 0.40, 5};
  table.ops["once"] = {1, 0, 1};
  EXPECT_DOUBLE_EQ(typical_spread(machine), 0.20);
}

TEST_F(PassTest, AnInterruptedPassGoesOnWhereItStopped) {
  Machine machine = run();
  const std::string key = "embedding/f32/32,67x32->32x32";  // of the first micro-batch only
  machine.tables[0].ops_in_sequence.at(key).seconds = 123;
  machine.tables[0].copy_bytes_per_second = 456;
  write_file_atomically(request_.partial, machine_to_json(machine));
  const Machine again = run();
  EXPECT_EQ(again.tables[0].ops_in_sequence.at(key).seconds, 123) << "was not measured again";
  EXPECT_EQ(again.tables[0].copy_bytes_per_second, 456);
}

TEST_F(PassTest, MeasurementsOfAnotherHostOrVersionAreNotMixedIn) {
  Machine machine = run();
  machine.tables[0].copy_bytes_per_second = 456;
  machine.versions["oneDNN"] = "0.0.1";
  write_file_atomically(request_.partial, machine_to_json(machine));
  EXPECT_NE(run().tables[0].copy_bytes_per_second, 456);
}

TEST_F(PassTest, ADamagedPartialFileIsMeasuredAnew) {
  write_file_atomically(request_.partial, "{\"schema\":");
  EXPECT_EQ(run().tables.size(), 1u);
}

TEST_F(PassTest, ObeysItsBudget) {
  request_.budget_seconds = 1;
  const auto begin = std::chrono::steady_clock::now();
  run();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_LT(seconds, 20) << "no order of magnitude beyond, however busy the host";
}

TEST(CompleteMachine, TakesPeaksAndLinksFromTheFullestTable) {
  Machine machine = describe_host();
  ProfileTable one, two;
  one.threads = 4, one.peak_flops_per_second = 9;
  two.ranks = 4, two.copy_bytes_per_second = 8, two.peak_flops_per_second = 2;
  machine.tables.push_back(one);
  two.collectives["send/2/64"] = {1e-6, 0, 5};
  two.collectives["send/2/1000000"] = {1e-3, 0, 5};
  machine.tables.push_back(two);
  complete_machine(machine, 4);
  EXPECT_EQ(machine.devices, 4);
  EXPECT_EQ(machine.device.peak_flops_per_second.at("f32").value, 2);
  EXPECT_EQ(machine.device.memory_bytes_per_second.value, 8);
  EXPECT_EQ(machine.intra_node.latency_seconds.value, 1e-6);
  EXPECT_DOUBLE_EQ(machine.intra_node.bytes_per_second.value, 1e9);
  EXPECT_EQ(machine_from_json(machine_to_json(machine), "m").tables.size(), 2u);
}

}  // namespace
}  // namespace foresail
