#include "profiler/pass.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include <fmt/format.h>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/parallel.h"
#include "kernels/device.h"
#include "profiler/basics.h"
#include "profiler/candidates.h"
#include "profiler/host.h"
#include "profiler/replay.h"
#include "profiler/samples.h"
#include "profiler/storage.h"
#include "program/compile.h"
#include "runtime/executor/resident.h"

namespace foresail {
namespace {

// Shares of what is left when a section begins; what a section does not use is left to the next.
constexpr double kBasicsShare = 0.08, kNamedShare = 0.60, kCommunicationShare = 0.40, kUpdateShare = 0.25;
constexpr double kStorageShare = 0.30;  // of what the grid could have
constexpr int64_t kMostMessageBytes = int64_t{64} << 20;
constexpr double kMemoryShare = 0.25;        // of what is available, for all ranks of one measurement together
constexpr double kExpectedEfficiency = 0.4;  // of the peak, in a whole step: for estimates only
constexpr int kSmallestBasics = 3;

class Pass {
 public:
  Pass(const PassRequest& request, Communicator& communicator)
      : request_(request),
        team_(communicator, request.budget_seconds),
        device_(make_cpu_device(request.threads)),
        machine_(load_known(communicator)) {
    target_.threads = request.threads;
  }

  void run() {
    basics();
    list_workspace();
    const auto candidates =
        replay_candidates(request_.models, team_.size(), request_.sequence_length, last_level_cache_bytes());
    const auto grid =
        std::find_if(candidates.begin(), candidates.end(), [](const ReplayCandidate& c) { return !c.named; });
    replays({candidates.begin(), grid}, kNamedShare);
    communication();
    update_ops();
    replays({grid, candidates.end()}, request_.storage ? 1 - kStorageShare : 1);
    if (request_.storage) storage();
    save();
  }

 private:
  Machine load_known(const Communicator& communicator);
  ProfileTable& table();
  void basics();
  void list_workspace();
  void note_workspace(const Program& program);
  Program compiled(const ReplayCandidate& candidate);
  void communication();
  std::map<std::string, OpInstance> ops_to_measure_alone();
  void update_ops();
  void replays(std::span<const ReplayCandidate> candidates, double share);
  bool try_replay(const ReplayCandidate& candidate, double seconds, bool essential);
  void storage();
  void save();
  bool fits(int64_t bytes_per_rank);
  bool everyone_knows(bool known) { return team_.agreed(known ? 1 : 0) != 0; }

  const PassRequest& request_;
  Team team_;
  std::unique_ptr<Device> device_;
  Target target_;
  Machine machine_;
  std::vector<double> outside_arena_;
};

Machine Pass::load_known(const Communicator& communicator) {
  Machine current = describe_host();
  current.versions = versions(communicator);
  Machine stored = load_partial(request_.partial);
  if (stored.tables.empty() || !same_host(stored, current)) return current;
  stored.versions.insert(current.versions.begin(), current.versions.end());
  return stored;
}

ProfileTable& Pass::table() {
  for (ProfileTable& one : machine_.tables) {
    if (one.ranks == team_.size() && one.threads == request_.threads) return one;
  }
  ProfileTable& added = machine_.tables.emplace_back();
  added.ranks = team_.size();
  added.threads = request_.threads;
  return added;
}

/// Whether every rank can allocate this much at the same time.
bool Pass::fits(int64_t bytes_per_rank) {
  const double available = kMemoryShare * static_cast<double>(available_memory_bytes());
  return team_.agreed(static_cast<double>(bytes_per_rank) * team_.size() <= available ? 1 : 0) != 0;
}

void Pass::basics() {
  RepeatLimits limits;
  limits.seconds = kBasicsShare * request_.budget_seconds / 4;
  limits.least_samples = kSmallestBasics;
  if (!everyone_knows(table().copy_bytes_per_second > 0)) table().copy_bytes_per_second = measure_copy(team_, limits);
  if (!everyone_knows(table().peak_flops_per_second > 0))
    table().peak_flops_per_second = measure_peak(team_, *device_, limits);
  save();
}

/// Every op of every legal Program of the named models at its full depth, measured or not, so that each can be laid out.
void Pass::list_workspace() {
  for (const ModelSpec& model : request_.models) {
    const int64_t sequence = usual_sequence_length(model, request_.sequence_length);
    for (const int64_t micro_batch : micro_batches_for(sequence)) {
      for (int64_t tensor = 1; tensor <= team_.size(); ++tensor) {
        ReplayCandidate candidate{
            .model = model, .job = profiling_job(model, sequence, micro_batch), .strategy = {}, .named = true};
        candidate.strategy.tp = tensor;
        candidate.strategy.micro_batch = micro_batch;
        if (legal(model, candidate.job, candidate.strategy).empty()) note_workspace(compiled(candidate));
      }
    }
  }
}

/// Ops with workspace enter the machine; the larger value stays where several thread counts differ.
void Pass::note_workspace(const Program& program) {
  for (const auto& [key, bytes] : used_workspaces(program)) {
    int64_t& known = machine_.workspace_bytes[key];
    known = std::max(known, bytes);
  }
}

Program Pass::compiled(const ReplayCandidate& candidate) { return replay_program(candidate, target_, *device_); }

void Pass::communication() {
  if (team_.size() < 2) return;
  std::vector<int64_t> sizes;
  for (int64_t bytes = 64; bytes <= kMostMessageBytes; bytes *= 4) sizes.push_back(bytes);
  const double seconds = kCommunicationShare * team_.remaining();
  table().collectives.merge(measure_communication(team_, sizes, seconds, table().collectives));
  save();
}

/// Adds the ops that a step of the Program runs in phases that `wants` picks.
template <typename Wants>
void add_ops(const Program& program, const Wants& wants, std::map<std::string, OpInstance>& ops) {
  for (const ScheduleEntry& entry : program.schedule) {
    for (const Call& call : calls_of(program, entry)) {
      const Block& block = program.blocks[static_cast<size_t>(call.block)];
      for (const Instruction& instruction : block.instructions) {
        if (instruction.kind != InstructionKind::op) continue;
        OpInstance op = op_instance(block, instruction);
        if (wants(entry.phase, op.kind)) ops.emplace(signature(op), std::move(op));
      }
    }
  }
}

/// Ops of the optimizer and the bookkeeping at the sizes of the whole models, since replays run cut models; and those of
/// kinds that only variants have, so that every strategy has a price even if no replay of them can be afforded.
std::map<std::string, OpInstance> Pass::ops_to_measure_alone() {
  std::map<std::string, OpInstance> wanted;
  const auto bookkeeping = [](Phase phase, OpKind) {
    return phase == Phase::begin_step || phase == Phase::grad_norm || phase == Phase::update;
  };
  for (const ModelSpec& model : request_.models) {
    const int64_t sequence = usual_sequence_length(model, request_.sequence_length);
    std::set<OpKind> plain_kinds;
    const auto of_new_kind = [&](Phase, OpKind kind) { return plain_kinds.count(kind) == 0; };
    for (int64_t tensor = 1; tensor <= team_.size(); ++tensor) {
      Strategy strategy;
      strategy.tp = tensor;
      const Job job = profiling_job(model, sequence, 1);
      if (team_.size() % tensor != 0 || !legal(model, job, strategy).empty()) continue;
      const Program program = compiled({.model = model, .job = job, .strategy = strategy, .named = true});
      add_ops(program, bookkeeping, wanted);
      for (const Block& block : program.blocks) {
        for (const Instruction& instruction : block.instructions) plain_kinds.insert(instruction.op);
      }
    }
    std::vector<Strategy> variants = variant_strategies(team_.size());
    for (const Strategy& moving : moving_strategies(team_.size())) variants.push_back(moving);
    for (const Strategy& variant : variants) {
      const Job job = profiling_job(model, sequence, variant.dp);
      if (!legal(model, job, variant).empty()) continue;
      const Program program = compiled({.model = model, .job = job, .strategy = variant, .named = true});
      note_workspace(program);
      add_ops(program, of_new_kind, wanted);
      if (variant.zero_stage > 0) add_ops(program, bookkeeping, wanted);
    }
  }
  return wanted;
}

bool knows_kind(const ProfileTable& table, OpKind kind) {
  const std::string prefix = std::string(name_of(kind)) + "/";
  const auto has = [&](const std::map<std::string, Measurement>& ops) {
    const auto at = ops.lower_bound(prefix);
    return at != ops.end() && at->first.starts_with(prefix);
  };
  return has(table.ops) || has(table.ops_in_sequence);
}

void Pass::update_ops() {
  const std::map<std::string, OpInstance> wanted = ops_to_measure_alone();
  const double deadline = team_.elapsed() + kUpdateShare * team_.remaining();
  size_t index = 0;
  for (const auto& [key, op] : wanted) {
    const double left = team_.agreed(deadline - team_.elapsed());
    const size_t open = wanted.size() - index++;
    const bool known = table().ops.count(key) != 0 || table().ops_in_sequence.count(key) != 0;
    if (everyone_knows(known) || !fits(operand_bytes(op, *device_))) continue;
    // The first of its kind is measured whatever it costs: without it nothing that uses the kind has a price.
    if (left <= 0 && everyone_knows(knows_kind(table(), op.kind))) continue;
    RepeatLimits limits;
    limits.seconds = std::max(left, 0.0) / static_cast<double>(open);
    table().ops[key] = measure_op(team_, *device_, op, 2, limits);
  }
  save();
}

/// Runs the candidate unless all it would tell is known or it cannot be afforded. Returns whether it was affordable. An
/// essential one runs whatever it costs.
bool Pass::try_replay(const ReplayCandidate& candidate, double seconds, bool essential) {
  const Program program = compiled(candidate);
  note_workspace(program);
  const auto signatures = op_signatures(program);
  const auto& known_ops = table().ops_in_sequence;
  const bool known =
      std::all_of(signatures.begin(), signatures.end(), [&](const auto& s) { return known_ops.count(s) != 0; });
  if (everyone_knows(known)) return true;
  if (!fits(program.arena.bytes)) return false;
  const double step = step_flops(program) / (kExpectedEfficiency * table().peak_flops_per_second);
  const int least_steps = candidate.named ? 3 : 2;
  if (!essential && team_.agreed(step) * (least_steps + 1) > team_.remaining()) return false;
  const ReplayResult result = replay(program, candidate.model.vocabulary, *device_, team_, seconds, least_steps);
  for (const auto& [key, measured] : result.ops) {
    Measurement& known = table().ops_in_sequence[key];
    if (measured.samples > known.samples) known = measured;
  }
  for (const auto& [key, measured] : result.collectives) table().collectives[key] = measured;
  outside_arena_.push_back(static_cast<double>(result.outside_arena_bytes));
  if (team_.leads()) log_info("  a step of {}: {:.1f} ms", candidate.text(), 1e3 * result.step_seconds);
  save();
  return true;
}

/// The first candidate of each degree is essential: without it nothing could be predicted.
void Pass::replays(std::span<const ReplayCandidate> candidates, double share) {
  const double deadline = team_.elapsed() + share * team_.remaining();
  std::set<int64_t> degrees;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const ReplayCandidate& candidate = candidates[i];
    const bool essential = (candidate.named || request_.models.empty()) && degrees.insert(candidate.strategy.tp).second;
    const double left = team_.agreed(deadline - team_.elapsed());
    if (left <= 0 && !essential) continue;
    try_replay(candidate, std::max(left, 0.0) / static_cast<double>(candidates.size() - i), essential);
  }
}

void Pass::storage() {
  const double seconds = std::max(0.3, std::min(2.0, kStorageShare * request_.budget_seconds / 2));
  if (team_.leads() && machine_.disk_write_bytes_per_second.value <= 0) {
    const std::filesystem::path folder = std::filesystem::absolute(request_.partial).parent_path();
    const DiskRates disk = measure_disk(folder, seconds);
    machine_.disk_write_bytes_per_second = {disk.write_bytes_per_second, "measured: 4 MiB pieces, fsync"};
    machine_.disk_read_bytes_per_second = {disk.read_bytes_per_second, "measured: 4 MiB pieces"};
    const int64_t length =
        request_.models.empty() ? 256 : usual_sequence_length(request_.models[0], request_.sequence_length);
    machine_.data_read_tokens_per_second = {measure_data_reading(folder, length, seconds / 4), "measured: one process"};
  }
  team_.barrier();
}

void Pass::save() {
  if (!outside_arena_.empty()) {
    std::vector<double> all = outside_arena_;
    const double middle = median(all);
    const double half = (percentile(all, 1) - percentile(all, 0)) / 2;
    machine_.framework_bytes = std::max(machine_.framework_bytes, static_cast<int64_t>(middle));
    machine_.framework_bytes_spread = std::max(machine_.framework_bytes_spread, static_cast<int64_t>(half));
  }
  if (team_.leads()) write_file_atomically(request_.partial, machine_to_json(machine_));
}

}  // namespace

Machine load_partial(const std::filesystem::path& partial) {
  if (!std::filesystem::exists(partial)) return describe_host();
  try {
    return machine_from_json(read_file(partial), partial.string());
  } catch (const Error& error) {
    log_warning("{}: measuring anew", error.what());
    return describe_host();
  }
}

void run_pass(const PassRequest& request, Communicator& communicator) {
  set_thread_count(request.threads);
  Pass(request, communicator).run();
}

}  // namespace foresail
