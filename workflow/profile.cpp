#include "workflow/profile.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "profiler/host.h"
#include "profiler/pass.h"
#include "profiler/quality.h"

namespace foresail {
namespace {

constexpr int kEveryCountUpTo = 8;     // rank counts beyond: powers of two and divisors of the largest
constexpr double kStartSeconds = 1.0;  // of the ranks of a pass
constexpr double kLeastBudgetSeconds = 1.0;
constexpr double kLargeSpread = 0.15;  // idle hosts stay well below

int most_ranks(const ProfileOptions& options) {
  return options.ranks > 0 ? static_cast<int>(options.ranks) : cores_of_host();
}

bool worth_a_table(int ranks, int most) {
  return ranks <= kEveryCountUpTo || most % ranks == 0 || (ranks & (ranks - 1)) == 0;
}

std::vector<ModelSpec> load_models(const ProfileOptions& options) {
  std::vector<ModelSpec> models;
  for (const std::string& name : options.models) models.push_back(load_model(name));
  return models;
}

/// A model without positions for this length has no legal layout: nothing of it could be measured.
void require_positions(const ModelSpec& model, int64_t sequence_length) {
  if (model.positions != PositionKind::learned || sequence_length <= model.max_positions) return;
  throw_bad_input(
      "--seq-len",
      fmt::format("{} is longer than the {} learned positions of {}", sequence_length, model.max_positions, model.name),
      fmt::format("give at most {}", model.max_positions));
}

/// What a plan made with this machine would have to guess about, or trust too much.
void warn_of_weaknesses(const ProfileOptions& options, const Machine& machine) {
  for (const ModelSpec& model : load_models(options)) {
    if (measured_in_sequence(machine, model, options.sequence_length)) continue;
    log_warning("no layout of {} could be measured: too large for this machine, or no rank count divides it",
                model.name);
  }
  const double spread = typical_spread(machine);
  if (spread <= kLargeSpread) return;
  log_warning("measurements spread by {:.0f} %: the machine was busy; profile again when it is idle", 100 * spread);
}

/// Prices and failure rates that no measurement gives come from the base.
void lay_over(Machine& measured, const Machine& base) {
  measured.name = base.name;
  measured.usd_per_device_hour = base.usd_per_device_hour;
  measured.failures_per_device_day = base.failures_per_device_day;
  measured.inter_node = base.inter_node;
  measured.device.watts = base.device.watts;
}

}  // namespace

std::filesystem::path partial_path(const ProfileOptions& options) { return options.out.string() + ".partial"; }

std::vector<ProfilePass> profile_passes(const ProfileOptions& options) {
  if (options.out.empty()) throw_bad_input("profile", "--out is missing", "name the machine file to write");
  require_writable_file(options.out);
  if (options.ranks < 0 || options.ranks > 1024) {
    throw_bad_input("--ranks", fmt::format("{} is not between 1 and 1024", options.ranks),
                    "give the number of devices");
  }
  if (!(options.budget_seconds >= kLeastBudgetSeconds)) {
    throw_bad_input("--budget", fmt::format("{} seconds are too few", options.budget_seconds),
                    "give 10 seconds or more");
  }
  for (const ModelSpec& model : load_models(options)) require_positions(model, options.sequence_length);
  if (!options.base.empty()) load_machine(options.base);
  const int most = most_ranks(options), cores = cores_of_host();
  std::vector<ProfilePass> passes;
  for (int ranks = most; ranks >= 1; --ranks) {
    if (worth_a_table(ranks, most))
      passes.push_back({.ranks = ranks, .threads = std::max(1, cores / ranks), .budget_seconds = 0});
  }
  const double each = options.budget_seconds / static_cast<double>(passes.size()) - kStartSeconds;
  for (ProfilePass& pass : passes) pass.budget_seconds = std::max(each, kLeastBudgetSeconds);
  return passes;
}

void profile_pass(const ProfileOptions& options, const ProfilePass& pass, Communicator& communicator) {
  if (communicator.rank() == 0) {
    log_info("profiling {} ranks x {} threads for {:.0f} s", pass.ranks, pass.threads, pass.budget_seconds);
  }
  run_pass({.models = load_models(options),
            .threads = pass.threads,
            .budget_seconds = pass.budget_seconds,
            .sequence_length = options.sequence_length,
            .storage = pass.ranks == 1,
            .partial = partial_path(options)},
           communicator);
}

ProfileResult finish_profile(const ProfileOptions& options) {
  Machine machine = load_partial(partial_path(options));
  if (machine.tables.empty()) {
    throw_environment(options.out.string(), "no pass left any measurement", "run foresail profile again");
  }
  if (!options.base.empty()) lay_over(machine, load_machine(options.base));
  complete_machine(machine, most_ranks(options));
  ProfileResult result{.out = options.out.string(), .measurements = 0, .seconds = 0, .json = machine_to_json(machine)};
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - options.started).count();
  for (const ProfileTable& table : machine.tables) {
    result.measurements +=
        static_cast<int64_t>(table.ops.size() + table.ops_in_sequence.size() + table.collectives.size());
  }
  write_file_atomically(options.out, result.json);
  warn_of_weaknesses(options, machine);
  std::error_code ignored;
  std::filesystem::remove(partial_path(options), ignored);
  return result;
}

}  // namespace foresail
