#include "workflow/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "core/error.h"
#include "core/file.h"
#include "planner/explain/explain.h"
#include "planner/search/evaluate.h"
#include "planner/simulator/priced_program.h"
#include "program/check.h"
#include "program/compile.h"
#include "workflow/request.h"
#include "workflow/workspace.h"

namespace foresail {
namespace {

constexpr int64_t kMostDumpBytes = int64_t{1} << 30;

/// The strategy with dp filled in so that all devices of --devices are used; without it, those that the strategy names.
Strategy strategy_of(const SimulateOptions& options) {
  const StrategyText text = parse_strategy(options.strategy);
  Strategy strategy = text.strategy;
  if (options.devices < 0) throw_bad_input("--devices", "a negative number", "give the number of devices");
  if (!text.names("dp") && options.devices > 0) {
    const int64_t devices = options.devices;
    const int64_t rest = strategy.devices();
    if (devices % rest != 0) {
      throw_bad_input(fmt::format("--strategy '{}'", options.strategy),
                      fmt::format("{} devices are not a multiple of its other degrees, {}", devices, rest),
                      "change --devices or the degrees");
    }
    strategy.dp = devices / rest;
  }
  if (options.devices > 0 && strategy.devices() != options.devices) {
    throw_bad_input(fmt::format("--strategy '{}'", options.strategy),
                    fmt::format("it uses {} devices, --devices says {}", strategy.devices(), options.devices),
                    "make them equal or leave dp out");
  }
  return strategy;
}

void check_fit(SimulateResult& result) {
  const int64_t memory = memory_per_device(result.request.machine, result.candidate.strategy.devices());
  result.fits = memory <= 0 || result.candidate.predicted.peak_bytes <= memory;
}

std::vector<Program> read_programs(const std::vector<std::filesystem::path>& paths) {
  std::vector<Program> stages;
  for (const std::filesystem::path& path : paths) {
    stages.push_back(read_program(read_file(path, kMostDumpBytes), path.string()));
    const Program& program = stages.back();
    const std::vector<std::string> problems = check_program(program);
    if (!problems.empty()) {
      throw_bad_input(path.string(), "the program does not pass the static check: " + problems.front(),
                      "dump it again with foresail plan --dump-program");
    }
    if (program.stage != static_cast<int32_t>(stages.size()) - 1 || program.mesh != stages[0].mesh) {
      throw_bad_input(
          path.string(),
          fmt::format("it is stage {} of its mesh, not stage {} of the first file's", program.stage, stages.size() - 1),
          "give the dumps of one plan in the order of their stages");
    }
  }
  if (static_cast<int64_t>(stages.size()) != stages[0].mesh.pp) {
    throw_bad_input(paths[0].string(),
                    fmt::format("{} dumps for a pipeline of {} stages", stages.size(), stages[0].mesh.pp),
                    "give --program once per stage");
  }
  const std::vector<std::string> problems = check_pipeline(stages);
  if (!problems.empty()) {
    throw_bad_input(paths[0].string(), "the stages do not fit together: " + problems.front(),
                    "dump them again with foresail plan --dump-program");
  }
  return stages;
}

bool any_instruction(const Program& program, const std::function<bool(const Instruction&)>& is) {
  return std::any_of(program.blocks.begin(), program.blocks.end(), [&](const Block& block) {
    return std::any_of(block.instructions.begin(), block.instructions.end(), is);
  });
}

/// By what the Program does: a split backward is a zero-bubble schedule, whose second chunk runs back up in ZB-V; all
/// micro-batches in flight at once are GPipe's.
ScheduleKind schedule_of(const Program& program) {
  const bool splits = !program.calls[static_cast<size_t>(Phase::weight_gradient)].empty();
  if (splits) return program.chunks.size() > 1 ? ScheduleKind::zb_v : ScheduleKind::zb_h1;
  if (program.chunks.size() > 1) return ScheduleKind::interleaved;
  const auto forward_all = [&] {
    int64_t forwards = 0;
    for (const ScheduleEntry& entry : program.schedule) {
      if (entry.phase == Phase::backward) return forwards == program.micro_batches;
      if (entry.phase == Phase::forward) ++forwards;
    }
    return false;
  };
  const bool gpipe = program.mesh.pp > 1 && program.micro_batches > program.mesh.pp && forward_all();
  return gpipe ? ScheduleKind::gpipe : ScheduleKind::one_f_one_b;
}

/// What a dump of stage 0 says about the strategy that it was compiled from. Which tensors are recomputed shows only as
/// some (selective) or all products (full) of a layer.
Strategy strategy_of(const Program& program) {
  const Mesh& mesh = program.mesh;
  Strategy strategy;
  strategy.dp = mesh.dp, strategy.tp = mesh.tp, strategy.pp = mesh.pp, strategy.cp = mesh.cp;
  strategy.ep = mesh.ep, strategy.etp = mesh.etp;
  strategy.virtual_stages = std::max<int64_t>(1, static_cast<int64_t>(program.chunks.size()));
  strategy.micro_batch = program.sequence_length > 0 ? sequences_per_micro_batch(program) : 1;
  strategy.schedule = schedule_of(program);
  strategy.zero_stage = program.zero_stage;
  if (program.zero_stage > 0 && mesh.shard < mesh.data_ranks()) strategy.zero_group = mesh.shard;
  strategy.ragged_batch = program.global_batch % (mesh.dp * strategy.micro_batch) != 0;
  strategy.sequence_parallel = any_instruction(program, [](const Instruction& i) {
    return i.kind == InstructionKind::reduce_scatter && i.group == GroupKind::tensor;
  });
  const bool exchanges = any_instruction(program, [](const Instruction& i) {
    return i.kind == InstructionKind::all_to_all && i.group == GroupKind::context;
  });
  if (exchanges) strategy.context = ContextKind::all_to_all;
  const auto replays = [](const Instruction& i) { return i.time == TimeKind::recompute; };
  const auto replays_products = [&](const Instruction& i) { return replays(i) && i.op == OpKind::linear; };
  if (any_instruction(program, replays)) {
    strategy.recompute = any_instruction(program, replays_products) ? Recompute::full : Recompute::selective;
  }
  return strategy;
}

/// A dump says all of this itself.
void refuse_what_a_dump_says(const SimulateOptions& options) {
  const std::pair<const char*, bool> flags[] = {
      {"--model", !options.model.empty()},         {"--job", !options.job.empty()},
      {"--strategy", !options.strategy.empty()},   {"--devices", options.devices != 0},
      {"--seq-len", options.sequence_length != 0}, {"--global-batch", options.global_batch != 0}};
  for (const auto& [flag, given] : flags) {
    if (given) {
      throw_bad_input(flag, "a dumped Program holds its own, it cannot be changed",
                      "leave it out, or give --model in place of --program");
    }
  }
}

SimulateResult simulate_dump(const SimulateOptions& options) {
  refuse_what_a_dump_says(options);
  SimulateResult result;
  result.from_program = true;
  if (options.machine.empty())
    throw_bad_input("--machine", "no machine was named", "name a catalogue machine or a machine.json");
  SearchRequest& request = result.request;
  request.machine = load_machine(options.machine);
  request.stack = load_stack(options.stack.empty() ? "foresail" : options.stack);
  const std::vector<Program> stages = read_programs(options.programs);
  const Program& first = stages[0];
  result.candidate.strategy = strategy_of(first);
  const int64_t devices = result.candidate.strategy.devices();
  const auto costs = costs_for(request.machine, request.stack, devices);
  SimulationOptions how;
  how.record_events = !options.trace.empty();
  how.devices_per_node = request.machine.devices_per_node;
  const Simulation played = simulate(stages, *costs, how);
  Prediction& predicted = result.candidate.predicted;
  predicted = memory_prediction(stages, target_for(request.machine, request.stack, devices));
  predicted.step_seconds = played.step_seconds, predicted.step_seconds_low = played.low;
  predicted.step_seconds_high = played.high, predicted.time = played.time, predicted.calibrated = costs->calibrated();
  fill_rates(stages, devices, peak_flops_per_second(request.machine, first.precision, devices), predicted);
  result.candidate.stage_seconds = played.stage_seconds;
  result.costs_note = costs->note();
  request.job.sequence_length = first.sequence_length;
  request.job.global_batch = first.global_batch;
  check_fit(result);
  if (!options.trace.empty()) write_file_atomically(options.trace, chrome_trace(stages, played));
  return result;
}

}  // namespace

SimulateResult simulate_strategy(const SimulateOptions& options) {
  if (!options.trace.empty()) require_writable_file(options.trace);
  if (!options.programs.empty()) return simulate_dump(options);
  SimulateResult result;
  SearchRequest& request = result.request;
  resolve(
      {options.model, options.machine, options.stack, options.job, options.sequence_length, options.global_batch, 0, 0},
      request);
  const Strategy strategy = strategy_of(options);
  request.device_counts = {strategy.devices()};
  result.batch_reason = settle_global_batch(request);
  const std::vector<std::string> reasons = legal(request.model, request.job, strategy);
  if (!reasons.empty()) {
    throw_bad_input(fmt::format("--strategy '{}'", options.strategy), fmt::format("{}", fmt::join(reasons, "; ")),
                    "change the strategy or the job");
  }
  request.fixed = parse_strategy(to_text(strategy));
  list_workspace(request);
  const bool trace = !options.trace.empty();
  Evaluation evaluation = evaluate(request.model, request.job, request.machine, request.stack, strategy, trace);
  result.candidate = std::move(evaluation.candidate);
  const auto costs = costs_for(request.machine, request.stack, strategy.devices());
  result.costs_note = costs_note(evaluation.programs, *costs, request.machine.devices_per_node);
  check_fit(result);
  if (trace) write_file_atomically(options.trace, chrome_trace(evaluation.programs, evaluation.simulation));
  return result;
}

std::string simulate_table(const SimulateResult& result) {
  const SearchRequest& request = result.request;
  std::string text;
  if (!result.from_program) text += request.model.name + ": ";
  text +=
      fmt::format("sequences of {} tokens, global batch {}\n", request.job.sequence_length, request.job.global_batch);
  if (!result.batch_reason.empty()) text += "  the global batch is proposed: " + result.batch_reason + "\n";
  text += candidate_text(result.candidate, request);
  if (!result.costs_note.empty()) text += "  note     " + result.costs_note + "\n";
  if (!result.fits) {
    const int64_t memory = memory_per_device(request.machine, result.candidate.strategy.devices());
    text += fmt::format("does not fit: needs {} more than the {} of a device\n",
                        bytes_text(result.candidate.predicted.peak_bytes - memory), bytes_text(memory));
  }
  return text;
}

}  // namespace foresail
