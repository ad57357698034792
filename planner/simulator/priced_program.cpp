#include "planner/simulator/priced_program.h"

#include <algorithm>

#include "core/error.h"
#include "planner/simulator/group_span.h"

namespace foresail {
namespace {

Cost price_instruction(const Program& program, const Block& block, const Instruction& instruction,
                       const CostModel& costs, int64_t devices_per_node) {
  switch (instruction.kind) {
    case InstructionKind::op: return costs.op_seconds(op_instance(block, instruction));
    case InstructionKind::all_reduce:
    case InstructionKind::all_gather:
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

/// Whether the instruction after `previous` may be played as part of the same step.
bool joins(const Instruction& previous, const Instruction& next, bool previous_is_awaited) {
  return previous.kind == InstructionKind::op && next.kind == InstructionKind::op && previous.queue == next.queue &&
         previous.time == next.time && next.waits.empty() && !previous_is_awaited;
}

void build_steps(const Block& block, bool merge, PricedBlock& priced) {
  const size_t count = block.instructions.size();
  std::vector<bool> awaited(count, false);
  for (const Instruction& instruction : block.instructions) {
    for (const int32_t wait : instruction.waits) awaited.at(static_cast<size_t>(wait)) = true;
  }
  std::vector<int32_t> step_of(count, -1);
  for (size_t i = 0; i < count; ++i) {
    const Instruction& instruction = block.instructions[i];
    if (merge && i > 0 && joins(block.instructions[i - 1], instruction, awaited[i - 1])) {
      priced.steps.back().seconds += priced.costs[i].seconds;
      ++priced.steps.back().instructions;
    } else {
      PricedStep step{instruction.kind,        instruction.queue,
                      instruction.time,        instruction.group,
                      instruction.peer_stage,  instruction.channel,
                      static_cast<int32_t>(i), 1,
                      priced.costs[i].seconds, {}};
      for (const int32_t wait : instruction.waits) {
        ensure(wait >= 0 && static_cast<size_t>(wait) < i, "an instruction waits for earlier ones");
        step.waits.push_back(step_of[static_cast<size_t>(wait)]);
      }
      priced.steps.push_back(std::move(step));
    }
    step_of[i] = static_cast<int32_t>(priced.steps.size()) - 1;
  }
}

}  // namespace

std::vector<int64_t> block_executions(const Program& program) {
  std::vector<int64_t> executions(program.blocks.size(), 0);
  for (const ScheduleEntry& entry : program.schedule) {
    if (entry.phase == Phase::startup) continue;
    for (const Call& call : program.calls[static_cast<size_t>(entry.phase)]) {
      ++executions.at(static_cast<size_t>(call.block));
    }
  }
  return executions;
}

PricedProgram price(const Program& program, const CostModel& costs, int64_t devices_per_node, bool merge) {
  PricedProgram priced;
  priced.program = &program;
  priced.blocks.resize(program.blocks.size());
  const std::vector<int64_t> executions = block_executions(program);
  for (size_t b = 0; b < program.blocks.size(); ++b) {
    if (executions[b] == 0) continue;
    const Block& block = program.blocks[b];
    PricedBlock& target = priced.blocks[b];
    target.used = true;
    target.costs.reserve(block.instructions.size());
    for (const Instruction& instruction : block.instructions) {
      target.costs.push_back(price_instruction(program, block, instruction, costs, devices_per_node));
    }
    build_steps(block, merge, target);
  }
  return priced;
}

}  // namespace foresail
