// Mutants of compiled Programs (DeMillo, Lipton & Sayward 1978): what the static checks let through must be seen in the
// predicted time or memory, or in what is computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "planner/simulator/simulator.h"
#include "program/check.h"
#include "program/compile.h"
#include "tests/equivalence/faults.h"
#include "tests/equivalence/mutations.h"
#include "tests/equivalence/world.h"
#include "tests/program/small_models.h"

namespace foresail::testing {
namespace {

const char* const kMutated[][2] = {
    {"llama", "micro_batch=6"},
    {"gpt2", "micro_batch=6,recompute=selective"},
    {"llama", "tp=2,sequence_parallel=true,micro_batch=6"},
    {"uneven", "tp=2,micro_batch=6"},
    {"llama", "cp=2,micro_batch=6"},
    {"llama", "cp=2,context=all_to_all,micro_batch=6"},
    {"llama", "dp=2,micro_batch=3,accumulate_dtype=f32"},
    {"llama", "dp=2,zero_stage=1,micro_batch=3"},
    {"llama", "dp=2,zero_stage=3,micro_batch=3"},
    {"llama", "dp=2,micro_batch=3,overlap=true,bucket_bytes=20000"},
    {"gpt2", "pp=2,micro_batch=3"},
    {"llama", "pp=2,micro_batch=3,schedule=zb-h1"},
    {"llama", "pp=2,micro_batch=3,schedule=interleaved,virtual_stages=2"},
};
constexpr size_t kOfEachKind = 16;

/// Every operator costs its elements, every collective and message something.
class PlainCosts final : public CostModel {
 public:
  Cost op_seconds(const OpInstance& op) const override {
    int64_t elements = 0;
    for (const auto* operands : {&op.inputs, &op.outputs}) {
      for (const TensorType& type : *operands) elements += type.elements();
    }
    return {1 + static_cast<double>(elements), 0};
  }
  Cost collective_seconds(InstructionKind, int64_t bytes, const GroupSpan&) const override {
    return {1 + static_cast<double>(bytes), 0};
  }
  Cost message_seconds(int64_t bytes, bool) const override { return {1 + static_cast<double>(bytes), 0}; }
  double issue_seconds() const override { return 1; }
  bool calibrated() const override { return true; }
  double common_spread() const override { return 0; }
};

/// The Programs of an experiment as its ranks compile them, read back from their dumps.
std::vector<Program> dumped_programs(const Experiment& experiment) {
  Target target;
  target.back_end = experiment.device;
  const auto device = experiment.device == "cpu" ? make_cpu_device(1) : make_reference_device();
  const WorkspaceOf workspace_of = [&](const OpInstance& op) { return device->workspace_bytes(op); };
  std::vector<Program> stages;
  for (int stage = 0; stage < experiment.strategy.pp; ++stage) {
    const Program program =
        compile(experiment.model, experiment.job, experiment.strategy, target, stage, workspace_of).train;
    stages.push_back(read_program(dump_program(program), "dump"));
  }
  return stages;
}

bool refused(const std::vector<Program>& stages) {
  for (const Program& program : stages) {
    if (!check_program(program).empty()) return true;
  }
  return !check_pipeline(stages).empty();
}

std::vector<Program> mutant(std::vector<Program> stages, const Mutation& mutation) {
  for (Program& program : stages) mutate(program, mutation);
  return stages;
}

bool prediction_changes(const std::vector<Program>& stages, const std::vector<Program>& mutated) {
  if (simulate(stages, PlainCosts{}, {}).step_seconds != simulate(mutated, PlainCosts{}, {}).step_seconds) return true;
  const Target target;
  return memory_prediction(stages, target).peak_bytes != memory_prediction(mutated, target).peak_bytes;
}

/// Evenly spread over all of them.
std::vector<Mutation> some_of(const std::vector<Mutation>& all, size_t count) {
  std::vector<Mutation> chosen;
  for (size_t i = 0; i < std::min(count, all.size()); ++i)
    chosen.push_back(all[i * all.size() / std::min(count, all.size())]);
  return chosen;
}

Task executed(const Experiment& experiment, const std::string& name, const Mutation& mutation) {
  Task task;
  task.name = name;
  task.experiment = experiment;
  task.experiment.steps = 2;
  task.fault = in_program(name, [mutation](Program& program, const MeshCoordinate&) { mutate(program, mutation); });
  task.against_itself = true;
  return task;
}

TEST(Mutations, AreRefusedOrSeenInPredictionOrResult) {
  size_t mutants = 0, by_check = 0;
  std::vector<Task> left;
  std::vector<bool> predicted;
  for (const auto& [model, strategy] : kMutated) {
    const Experiment experiment = case_of("reference", model, strategy);
    const std::vector<Program> stages = dumped_programs(experiment);
    ASSERT_FALSE(refused(stages)) << strategy;
    for (const MutationKind kind : {MutationKind::removed, MutationKind::swapped, MutationKind::resized}) {
      for (const Mutation& mutation : some_of(mutations_of(stages, kind), kOfEachKind)) {
        ++mutants;
        const std::vector<Program> mutated = mutant(stages, mutation);
        if (refused(mutated)) {
          ++by_check;
        } else {
          predicted.push_back(prediction_changes(stages, mutated));
          left.push_back(executed(experiment, std::string(strategy) + ": " + text_of(stages, mutation), mutation));
        }
      }
    }
  }
  const std::vector<Findings> found = judge_all(left, world());
  size_t by_prediction = 0, by_result = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    by_prediction += predicted[i] ? 1 : 0;
    by_result += found[i].empty() ? 0 : 1;
    EXPECT_TRUE(predicted[i] || !found[i].empty()) << left[i].name << " survives";
  }
  EXPECT_GE(mutants, 50u);
  if (world().rank() != 0) return;
  std::cout << mutants << " mutants: " << by_check << " refused by the static checks; of the other " << left.size()
            << " the simulator predicts " << by_prediction << " differently and " << by_result
            << " compute something else\n";
}

/// What was left out above, and why: neither the checks nor the result can tell these mutants from the Program.
TEST(Mutations, OfIndependentNeighboursAreTheSameProgram) {
  std::vector<Task> tasks;
  for (const auto& [model, strategy] : kMutated) {
    const Experiment experiment = case_of("reference", model, strategy);
    const std::vector<Program> stages = dumped_programs(experiment);
    for (const Mutation& mutation : some_of(independent_swaps(stages), 2)) {
      EXPECT_FALSE(refused(mutant(stages, mutation))) << strategy << ": " << text_of(stages, mutation);
      tasks.push_back(executed(experiment, std::string(strategy) + ": " + text_of(stages, mutation), mutation));
    }
  }
  EXPECT_GE(tasks.size(), 5u);
  const std::vector<Findings> found = judge_all(tasks, world());
  for (size_t i = 0; i < tasks.size(); ++i) EXPECT_TRUE(found[i].empty()) << tasks[i].name << "\n" << found[i].front();
}

}  // namespace
}  // namespace foresail::testing
