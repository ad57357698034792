// Every rank of the world runs these tests together; rank 0 reports.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/equivalence/faults.h"
#include "tests/equivalence/suite.h"
#include "tests/equivalence/world.h"

namespace foresail::testing {
namespace {

constexpr size_t kSample = 12;

std::string text_of(const Findings& found) {
  std::string text;
  for (const std::string& line : found) text += "  " + line + "\n";
  return text;
}

void expect_equivalent(const std::vector<Task>& tasks) {
  const std::vector<Findings> found = judge_all(tasks, world());
  for (size_t i = 0; i < tasks.size(); ++i) EXPECT_TRUE(found[i].empty()) << tasks[i].name << "\n" << text_of(found[i]);
}

/// The cases of the faults, without them: a fault is only noticed if its case passes.
std::vector<Task> honest(const std::vector<Task>& faults) {
  std::vector<Task> tasks;
  std::set<std::string> names;
  for (Task task : faults) {
    task.fault = {};
    task.name = name_of(task.experiment);
    if (names.insert(task.name).second) tasks.push_back(task);
  }
  return tasks;
}

/// A fault counts as noticed by what its case does not say without it.
void expect_noticed(const std::vector<Task>& faults) {
  const std::vector<Task> without = honest(faults);
  const std::vector<Findings> said = judge_all(without, world());
  std::map<std::string, Findings> expected;
  for (size_t i = 0; i < without.size(); ++i) {
    EXPECT_TRUE(said[i].empty()) << without[i].name << "\n" << text_of(said[i]);
    expected[without[i].name] = said[i];
  }
  const std::vector<Findings> found = judge_all(faults, world());
  for (size_t i = 0; i < faults.size(); ++i) {
    const Findings& known = expected.at(name_of(faults[i].experiment));
    const bool noticed = std::any_of(found[i].begin(), found[i].end(), [&](const std::string& line) {
      return std::find(known.begin(), known.end(), line) == known.end();
    });
    EXPECT_TRUE(noticed) << faults[i].name;
  }
}

void expect_faults_noticed(const std::string& device) {
  const FaultList list = planted_faults(device);
  expect_equivalent(list.harmless);
  expect_noticed(list.faults);
}

/// Rows of experts that find no room on some rank: the step is repeated, and nothing else changes.
void expect_repeated(const std::string& device) {
  std::vector<Task> tasks;
  for (const std::string strategy :
       {"dp=2,ep=2,micro_batch=2,moe_bound=1", "dp=2,ep=2,etp=1,micro_batch=1,zero_stage=2,moe_bound=1",
        "dp=2,tp=2,sequence_parallel=true,ep=4,micro_batch=2,recompute=full,moe_bound=1",
        "dp=2,pp=2,ep=2,micro_batch=1,schedule=zb-h1,moe_bound=1"}) {
    Task task;
    task.experiment = case_of(device, "mixtral", strategy);
    task.name = name_of(task.experiment);
    task.overflows = true;
    tasks.push_back(task);
  }
  expect_equivalent(tasks);
}

TEST(Sample, RepeatsStepsWhoseRowsFindNoRoomOnReference) { expect_repeated("reference"); }
TEST(Sample, RepeatsStepsWhoseRowsFindNoRoomOnCpu) { expect_repeated("cpu"); }

TEST(PlantedFaults, AreNoticedOnReference) { expect_faults_noticed("reference"); }
TEST(PlantedFaults, AreNoticedOnCpu) { expect_faults_noticed("cpu"); }
TEST(Sample, NoticesPlantedFaults) { expect_noticed(sample_of(planted_faults("cpu").faults, kSample)); }

TEST(Strategies, TrainTheSameModelOnReference) { expect_equivalent(generated_tasks("reference")); }
TEST(Strategies, TrainTheSameModelOnCpu) { expect_equivalent(generated_tasks("cpu")); }
TEST(Sample, TrainsTheSameModelOnReference) { expect_equivalent(sample_of(generated_tasks("reference"), kSample)); }
TEST(Sample, TrainsTheSameModelOnCpu) { expect_equivalent(sample_of(generated_tasks("cpu"), kSample)); }

}  // namespace
}  // namespace foresail::testing
