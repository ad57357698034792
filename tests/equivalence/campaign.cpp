#include "tests/equivalence/campaign.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "tests/equivalence/judge.h"
#include "tests/equivalence/part_of_world.h"
#include "tests/equivalence/suite.h"

namespace foresail::testing {
namespace {

constexpr size_t kMostFindingBytes = 6000;

int ranks_of(const Experiment& experiment) { return static_cast<int>(experiment.strategy.devices()); }

/// Experiments that run at the same time, each on its part of the world.
struct Round {
  struct Part {
    size_t index = 0;  ///< of the experiment
    int first = 0;
    GroupId first_group = 0;
  };
  std::vector<Part> parts;
  int used = 0;
};

/// Large meshes first; small ones fill what they leave.
std::vector<Round> plan_rounds(const std::vector<Experiment>& experiments, int world) {
  std::vector<size_t> order(experiments.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return ranks_of(experiments[a]) > ranks_of(experiments[b]); });
  std::vector<Round> rounds;
  for (const size_t index : order) {
    const int ranks = ranks_of(experiments[index]);
    ensure(ranks <= world, "the world has the ranks of every experiment");
    const auto fits = [&](const Round& round) { return round.used + ranks <= world; };
    auto round = std::find_if(rounds.begin(), rounds.end(), fits);
    if (round == rounds.end()) round = rounds.insert(rounds.end(), Round{});
    round->parts.push_back({index, round->used, 0});
    round->used += ranks;
  }
  return rounds;
}

/// Creates the groups of all parts, and that of the whole world, which is returned.
GroupId create_round_groups(Round& round, const std::vector<Experiment>& experiments, Communicator& world) {
  std::vector<std::vector<int>> groups;
  for (Round::Part& part : round.parts) {
    part.first_group = static_cast<GroupId>(groups.size());
    for (auto& members : moved_to(groups_of(experiments[part.index]), part.first)) groups.push_back(std::move(members));
  }
  std::vector<int> all(static_cast<size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  groups.push_back(all);
  world.create_groups(groups);
  return static_cast<GroupId>(groups.size()) - 1;
}

/// Calls body(index of the experiment, its communicator) on the ranks of each part; `after` on all ranks when the round is
/// over. An error on one rank would leave the others waiting: it ends them all, with its message.
template <typename Body, typename After>
void run_rounds(const std::vector<Experiment>& experiments, Communicator& world, const Body& body, const After& after) {
  for (Round& round : plan_rounds(experiments, world.size())) {
    const GroupId everyone = create_round_groups(round, experiments, world);
    for (const Round::Part& part : round.parts) {
      const int ranks = ranks_of(experiments[part.index]);
      if (world.rank() < part.first || world.rank() >= part.first + ranks) continue;
      PartOfWorld communicator(world, part.first, ranks, part.first_group);
      try {
        body(part.index, communicator);
      } catch (const std::exception& error) {
        world.abort(fmt::format("{}: {}", to_text(experiments[part.index].strategy), error.what()));
      }
    }
    after(round, everyone);
  }
}

std::string key_of(const Experiment& experiment) {
  return fmt::format("{}/{}/{}", experiment.device, experiment.model.name, job_to_json(experiment.job));
}

// ---- Outcomes as plain numbers, to be broadcast

template <typename Visit>
void for_numbers(Outcome& outcome, const Visit& visit) {
  for (Tensors* tensors : {&outcome.gradients, &outcome.updates}) {
    for (auto& [name, values] : *tensors) visit(values);
  }
  for (auto* values : {&outcome.losses, &outcome.grad_norms, &outcome.auxiliary_losses, &outcome.evaluations}) {
    visit(*values);
  }
}

/// An outcome of the right sizes, all zero.
Outcome blank_outcome(const Experiment& experiment) {
  Outcome outcome;
  for (const ParameterSlice& slice : rank_slices(experiment.model, Strategy{}, {}).parameters) {
    const int64_t elements = slice.shape[0] * (slice.shape.size() > 1 ? slice.shape[1] : 1);
    for (Tensors* tensors : {&outcome.gradients, &outcome.updates}) {
      (*tensors)[slice.tensor].resize(static_cast<size_t>(elements));
    }
  }
  outcome.losses.resize(static_cast<size_t>(experiment.steps));
  outcome.grad_norms.resize(static_cast<size_t>(experiment.steps));
  outcome.auxiliary_losses.resize(static_cast<size_t>(experiment.steps));
  outcome.evaluations.resize(2);
  return outcome;
}

/// The cache of one-rank outcomes; the same on all ranks.
std::map<std::string, Outcome>& baselines() {
  static std::map<std::string, Outcome> cache;
  return cache;
}

/// Runs what is missing, as many at a time as there are ranks.
void make_baselines(std::span<const Task> tasks, Communicator& world) {
  std::vector<Experiment> missing;
  for (const Task& task : tasks) {
    if (task.against_itself || task.overflows) continue;
    const Experiment baseline = baseline_of(task.experiment);
    if (baselines().try_emplace(key_of(baseline), blank_outcome(baseline)).second) missing.push_back(baseline);
  }
  const auto run = [&](size_t index, Communicator& communicator) {
    Outcome outcome = run_experiment(missing[index], communicator);
    // A baseline that is wrong in itself proves nothing.
    ensure(outcome.violations.empty(), fmt::format("{}", fmt::join(outcome.violations, "; ")).c_str());
    baselines()[key_of(missing[index])] = std::move(outcome);
  };
  run_rounds(missing, world, run, [&](const Round& round, GroupId everyone) {
    for (const Round::Part& part : round.parts) {
      for_numbers(baselines()[key_of(missing[part.index])], [&](std::vector<double>& values) {
        world.broadcast(values.data(), static_cast<int64_t>(values.size() * sizeof(double)), part.first, everyone);
      });
    }
  });
}

// ---- Judging

void expect_same_bits(Outcome& a, Outcome& b, const char* what, Findings& found) {
  std::vector<const std::vector<double>*> first, second;
  for_numbers(a, [&](std::vector<double>& values) { first.push_back(&values); });
  for_numbers(b, [&](std::vector<double>& values) { second.push_back(&values); });
  const bool same = std::equal(first.begin(), first.end(), second.begin(), second.end(),
                               [](const auto* x, const auto* y) { return *x == *y; });
  if (!same) found.push_back(fmt::format("{} gives other bits", what));
}

Findings judge_against_itself(const Task& task, Communicator& communicator) {
  Outcome honest = run_experiment(task.experiment, communicator);
  Outcome outcome = run_experiment(task.experiment, communicator, task.fault);
  Findings found;
  for (const std::string& violation : outcome.violations) {
    if (std::find(honest.violations.begin(), honest.violations.end(), violation) == honest.violations.end()) {
      found.push_back(violation);
    }
  }
  expect_same_bits(honest, outcome, task.fault.name.c_str(), found);
  return found;
}

Findings judge_overflow(const Task& task, Communicator& communicator) {
  Experiment ample = task.experiment;
  ample.strategy.moe_bound = static_cast<double>(ample.model.moe.experts);
  Outcome tight = run_experiment(task.experiment, communicator);
  Outcome roomy = run_experiment(ample, communicator);
  Findings found = tight.violations;
  found.insert(found.end(), roomy.violations.begin(), roomy.violations.end());
  if (tight.repeated_steps == 0) found.emplace_back("no row lacked room");
  if (roomy.repeated_steps != 0) found.emplace_back("rows lacked room where there is room for all");
  expect_same_bits(tight, roomy, "repeating what overflowed", found);
  return found;
}

Findings judge(const Task& task, Communicator& communicator) {
  if (task.against_itself) return judge_against_itself(task, communicator);
  if (task.overflows) return judge_overflow(task, communicator);
  const Experiment& experiment = task.experiment;
  Outcome outcome = run_experiment(experiment, communicator, task.fault);
  Findings found = outcome.losses.empty()
                       ? outcome.violations
                       : differences(outcome, baselines().at(key_of(baseline_of(experiment))), experiment);
  if (outcome.losses.empty()) return found;
  if (task.repeat) {
    Outcome again = run_experiment(experiment, communicator, task.fault);
    expect_same_bits(outcome, again, "a second run", found);
  }
  if (task.both_modes) {
    Experiment other = experiment;
    other.serialise_queues = !experiment.serialise_queues;
    Outcome serial = run_experiment(other, communicator, task.fault);
    expect_same_bits(outcome, serial, "the other queue mode", found);
  }
  return found;
}

}  // namespace

std::vector<Findings> judge_all(std::span<const Task> tasks, Communicator& world) {
  make_baselines(tasks, world);
  std::vector<Experiment> experiments;
  for (const Task& task : tasks) experiments.push_back(task.experiment);
  std::vector<Findings> found(tasks.size());
  std::string mine;
  const auto run = [&](size_t index, Communicator& communicator) {
    mine = fmt::format("{}", fmt::join(judge(tasks[index], communicator), "\n"));
  };
  run_rounds(experiments, world, run, [&](const Round& round, GroupId everyone) {
    const auto texts = all_texts(std::exchange(mine, {}), kMostFindingBytes, world, everyone);
    for (const Round::Part& part : round.parts) {
      std::istringstream lines(texts[static_cast<size_t>(part.first)]);
      for (std::string line; std::getline(lines, line);) found[part.index].push_back(line);
    }
  });
  return found;
}

}  // namespace foresail::testing
