#include "profiler/replay.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "ops/op_table.h"
#include "profiler/samples.h"
#include "program/compile.h"
#include "runtime/executor/executor.h"
#include "runtime/executor/resident.h"
#include "spec/mesh.h"

namespace foresail {
namespace {

constexpr int kMostSteps = 20;
constexpr double kSmallSpread = 0.01;  // of the whole step: more steps would not tell more

/// Names of what is timed, and for every instruction of every block which of them it is (-1: not timed).
struct TimedKeys {
  std::vector<std::string> names;
  std::vector<bool> is_op;
  std::vector<std::vector<int32_t>> of_block;

  int32_t index_of(const std::string& name, bool op) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found != names.end()) return static_cast<int32_t>(found - names.begin());
    names.push_back(name);
    is_op.push_back(op);
    return static_cast<int32_t>(names.size()) - 1;
  }
};

/// "all_reduce/2/524288"; empty if the instruction is no collective among the ranks that work on the same micro-batch. What
/// the data ranks do together comes once per step: too few samples, and the wait for the slowest would be counted in.
std::string collective_key(const Program& program, const Block& block, const Instruction& instruction) {
  const bool tensor = instruction.group == GroupKind::tensor;
  if (!tensor && instruction.group != GroupKind::context) return "";
  const int32_t ranks = tensor ? program.mesh.tp : program.mesh.cp;
  if (ranks < 2) return "";
  const char* name = "";
  switch (instruction.kind) {
    case InstructionKind::all_reduce: name = "all_reduce"; break;
    case InstructionKind::all_gather: name = "all_gather"; break;
    case InstructionKind::reduce_scatter: name = "reduce_scatter"; break;
    case InstructionKind::all_to_all: name = "all_to_all"; break;
    case InstructionKind::ring_shift: name = "ring_shift"; break;
    default: return "";
  }
  return fmt::format("{}/{}/{}", name, ranks, communication_bytes(block, instruction));
}

TimedKeys timed_keys(const Program& program) {
  TimedKeys keys;
  for (const Block& block : program.blocks) {
    auto& indices = keys.of_block.emplace_back();
    for (const Instruction& instruction : block.instructions) {
      if (instruction.kind == InstructionKind::op) {
        indices.push_back(keys.index_of(signature(op_instance(block, instruction)), true));
      } else {
        const std::string name = collective_key(program, block, instruction);
        indices.push_back(name.empty() ? -1 : keys.index_of(name, false));
      }
    }
  }
  return keys;
}

/// Small finite values everywhere: zeros and denormals would not cost what numbers cost.
void fill_parameters(const Program& program, Arena& arena) {
  auto* values = reinterpret_cast<float*>(arena.data() + program.arena.parameters.offset);
  uint32_t state = 2463534242u;  // xorshift32 (Marsaglia 2003)
  for (int64_t i = 0; i < program.arena.parameters.bytes / 4; ++i) {
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    values[i] = (static_cast<float>(state >> 8) * 0x1p-24f - 0.5f) * 0.07f;
  }
}

void fill_data(const Program& program, int64_t vocabulary, Executor& executor) {
  uint32_t state = 88675123u;
  for (int64_t m = 0; m < program.micro_batches; ++m) {
    for (auto ids : {executor.tokens(m), executor.targets(m)}) {
      for (int32_t& id : ids) {
        state ^= state << 13, state ^= state >> 17, state ^= state << 5;
        id = static_cast<int32_t>(state % static_cast<uint64_t>(vocabulary));
      }
    }
  }
}

/// Mean duration of each key in the step just traced, appended to its samples.
void collect(const Program& program, const TimedKeys& keys, const std::vector<TraceEvent>& trace,
             std::vector<std::vector<double>>& samples) {
  std::vector<double> sums(keys.names.size());
  std::vector<int64_t> counts(keys.names.size());
  for (const TraceEvent& event : trace) {
    const Call& call =
        program
            .calls[static_cast<size_t>(event.phase)][static_cast<size_t>(event.chunk)][static_cast<size_t>(event.call)];
    const int32_t key = keys.of_block[static_cast<size_t>(call.block)][static_cast<size_t>(event.instruction)];
    if (key < 0) continue;
    sums[static_cast<size_t>(key)] += event.end_seconds - event.begin_seconds;
    ++counts[static_cast<size_t>(key)];
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    if (counts[i] > 0) samples[i].push_back(sums[i] / static_cast<double>(counts[i]));
  }
}

void sort_results(const TimedKeys& keys, const std::vector<std::vector<double>>& samples, Team& team,
                  ReplayResult& result) {
  std::vector<Measurement> own;
  for (const auto& values : samples) own.push_back(summarise(values));
  const std::vector<Measurement> all = team.combined(own);
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].samples > 0) (keys.is_op[i] ? result.ops : result.collectives)[keys.names[i]] = all[i];
  }
}

}  // namespace

ReplayResult replay(const Program& program, int64_t vocabulary, Device& device, Team& team, double seconds,
                    int least_steps) {
  const MeshGroups groups = mesh_groups(program.mesh);
  team.communicator().create_groups(groups.members);  // the world is group 0 of every mesh
  Arena arena(program.arena.bytes);
  Executor executor(program, device, &team.communicator(), arena, team.communicator().rank());
  fill_parameters(program, arena);
  fill_data(program, vocabulary, executor);
  executor.step_inputs().learning_rate = 1e-5;
  executor.step_inputs().inverse_valid_tokens =
      1.0 / static_cast<double>(program.global_batch * program.sequence_length);
  executor.enable_trace();
  executor.startup();
  executor.step();  // warms caches, builds what libraries build late

  const TimedKeys keys = timed_keys(program);
  std::vector<std::vector<double>> samples(keys.names.size());
  std::vector<double> steps;
  const auto begin = ProfileClock::now();
  for (int step = 0; step < kMostSteps; ++step) {
    const double used = seconds_between(begin, ProfileClock::now());
    const bool enough =
        step >= least_steps && (used >= seconds || (step >= 5 && summarise(steps).spread < kSmallSpread));
    if (team.agreed(enough ? 1 : 0) != 0) break;
    team.barrier();
    const auto start = ProfileClock::now();
    executor.step();
    steps.push_back(seconds_between(start, ProfileClock::now()));
    collect(program, keys, executor.trace(), samples);
  }
  ReplayResult result;
  sort_results(keys, samples, team, result);
  result.step_seconds = median(steps);
  result.outside_arena_bytes = resident_bytes() - arena.bytes();
  return result;
}

Program replay_program(const ReplayCandidate& candidate, const Target& target, Device& device) {
  return compile(candidate.model, candidate.job, candidate.strategy, target, 0,
                 [&device](const OpInstance& op) { return device.workspace_bytes(op); })
      .train;
}

std::vector<std::string> op_signatures(const Program& program) {
  std::set<std::string> signatures;
  for (const ScheduleEntry& entry : program.schedule) {
    if (entry.micro_batch > 0) continue;  // later micro-batches run the same blocks
    for (const Call& call : calls_of(program, entry)) {
      const Block& block = program.blocks[static_cast<size_t>(call.block)];
      for (const Instruction& instruction : block.instructions) {
        if (instruction.kind == InstructionKind::op) signatures.insert(signature(op_instance(block, instruction)));
      }
    }
  }
  return {signatures.begin(), signatures.end()};
}

double step_flops(const Program& program) {
  double flops = 0;
  for (const ScheduleEntry& entry : program.schedule) {
    for (const Call& call : calls_of(program, entry)) {
      const Block& block = program.blocks[static_cast<size_t>(call.block)];
      for (const Instruction& instruction : block.instructions) {
        if (instruction.kind == InstructionKind::op) flops += flops_of(op_instance(block, instruction));
      }
    }
  }
  return flops;
}

}  // namespace foresail
