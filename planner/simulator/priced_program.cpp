#include "planner/simulator/priced_program.h"

#include <algorithm>

#include "core/error.h"
#include "planner/simulator/group_span.h"
#include "program/dependencies.h"

namespace foresail {
namespace {

Cost price_instruction(const Program& program, const Block& block, const Instruction& instruction,
                       const CostModel& costs, int64_t devices_per_node) {
  switch (instruction.kind) {
    case InstructionKind::op: return costs.op_seconds(op_instance(block, instruction));
    case InstructionKind::all_reduce:
    case InstructionKind::all_gather:
    case InstructionKind::reduce_scatter:
    case InstructionKind::all_to_all:
    case InstructionKind::ring_shift:
      return costs.collective_seconds(instruction.kind, communication_bytes(block, instruction),
                                      span_of(program.mesh, instruction.group, program.stage, devices_per_node));
    case InstructionKind::send: return {costs.issue_seconds(), 0};
    case InstructionKind::receive:
      return costs.message_seconds(
          communication_bytes(block, instruction),
          crosses_nodes(program.mesh, program.stage, instruction.peer_stage, devices_per_node));
    case InstructionKind::wait_send: return {};
  }
  return {};
}

/// Which instructions of a block wait for another queue, or are waited for, in any of its executions.
struct Joints {
  std::vector<bool> waits, awaited;
};

/// Also fills the waits of `priced`.
std::vector<Joints> joints_of(const Program& program, PricedProgram& priced) {
  std::vector<Joints> joints(program.blocks.size());
  for (size_t b = 0; b < joints.size(); ++b) {
    const size_t count = program.blocks[b].instructions.size();
    joints[b] = {std::vector<bool>(count, false), std::vector<bool>(count, false)};
  }
  const Dependencies dependencies = dependencies_of(program);
  if (dependencies.waits.empty()) return joints;
  for (const Dependency& wait : dependencies.waits) priced.awaited.push_back(wait.awaited);
  std::sort(priced.awaited.begin(), priced.awaited.end());
  priced.awaited.erase(std::unique(priced.awaited.begin(), priced.awaited.end()), priced.awaited.end());
  for (const Dependency& wait : dependencies.waits) {
    const auto at = std::lower_bound(priced.awaited.begin(), priced.awaited.end(), wait.awaited);
    priced.waits.push_back({wait.waiting, static_cast<size_t>(at - priced.awaited.begin())});
  }

  int64_t begin = 0;  // number of the first instruction of the call
  size_t wait = 0, awaited = 0;
  for (const ScheduleEntry& entry : program.schedule) {
    if (entry.phase == Phase::startup) continue;
    for (const Call& call : calls_of(program, entry)) {
      if (skips(entry, call)) continue;
      Joints& block = joints[static_cast<size_t>(call.block)];
      const int64_t end = begin + static_cast<int64_t>(block.waits.size());
      for (; wait < priced.waits.size() && priced.waits[wait].waiting < end; ++wait) {
        block.waits[static_cast<size_t>(priced.waits[wait].waiting - begin)] = true;
      }
      for (; awaited < priced.awaited.size() && priced.awaited[awaited] < end; ++awaited) {
        block.awaited[static_cast<size_t>(priced.awaited[awaited] - begin)] = true;
      }
      begin = end;
    }
  }
  return joints;
}

/// Whether the instruction after `previous` may be played as part of the same step.
bool joins(const Instruction& previous, const Instruction& next) {
  return previous.kind == InstructionKind::op && next.kind == InstructionKind::op && previous.queue == next.queue &&
         previous.time == next.time;
}

void build_steps(const Block& block, const Joints& joints, bool merge, PricedBlock& priced) {
  const size_t count = block.instructions.size();
  for (size_t i = 0; i < count; ++i) {
    const Instruction& instruction = block.instructions[i];
    const bool free = i > 0 && !joints.waits[i] && !joints.awaited[i - 1];
    if (merge && free && joins(block.instructions[i - 1], instruction)) {
      priced.steps.back().seconds += priced.costs[i].seconds;
      ++priced.steps.back().instructions;
      continue;
    }
    priced.steps.push_back({instruction.kind, instruction.queue, instruction.time, instruction.group,
                            instruction.peer_stage, instruction.channel, instruction.keep, static_cast<int32_t>(i), 1,
                            priced.costs[i].seconds});
  }
}

}  // namespace

std::vector<int64_t> block_executions(const Program& program) {
  std::vector<int64_t> executions(program.blocks.size(), 0);
  for (const ScheduleEntry& entry : program.schedule) {
    if (entry.phase == Phase::startup) continue;
    for (const Call& call : calls_of(program, entry)) {
      if (!skips(entry, call)) ++executions.at(static_cast<size_t>(call.block));
    }
  }
  return executions;
}

std::vector<Cost> price_block(const Program& program, const Block& block, const CostModel& costs,
                              int64_t devices_per_node) {
  std::vector<Cost> priced;
  priced.reserve(block.instructions.size());
  for (const Instruction& instruction : block.instructions) {
    priced.push_back(price_instruction(program, block, instruction, costs, devices_per_node));
  }
  return priced;
}

PricedProgram price(const Program& program, const CostModel& costs, int64_t devices_per_node, bool merge) {
  PricedProgram priced;
  priced.program = &program;
  priced.blocks.resize(program.blocks.size());
  const std::vector<int64_t> executions = block_executions(program);
  const std::vector<Joints> joints = joints_of(program, priced);
  for (size_t b = 0; b < program.blocks.size(); ++b) {
    if (executions[b] == 0) continue;
    PricedBlock& target = priced.blocks[b];
    target.used = true;
    target.costs = price_block(program, program.blocks[b], costs, devices_per_node);
    build_steps(program.blocks[b], joints[b], merge, target);
  }
  return priced;
}

std::string costs_note(std::span<const Program> programs, const CostModel& costs, int64_t devices_per_node) {
  for (const Program& program : programs) price(program, costs, devices_per_node, true);
  return costs.note();
}

}  // namespace foresail
