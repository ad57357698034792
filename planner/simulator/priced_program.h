// A Program with a duration on every instruction, in a form that plays fast: runs of ops of one queue and one time kind
// that nobody waits for in between are one step.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "planner/simulator/cost_model.h"
#include "program/program.h"

namespace foresail {

struct PricedStep {
  InstructionKind kind = InstructionKind::op;
  Queue queue = Queue::compute;
  TimeKind time = TimeKind::compute;
  GroupKind group = GroupKind::world;
  int32_t peer_stage = 0, channel = 0, keep = 0;
  int32_t first_instruction = 0, instructions = 0;
  double seconds = 0;
};

struct PricedBlock {
  std::vector<PricedStep> steps;
  std::vector<Cost> costs;  ///< by instruction
  bool used = false;        ///< by the schedule; other blocks are not priced
};

/// An executed instruction, by its number (program/dependencies.h), that waits for another queue.
struct PricedWait {
  int64_t waiting = 0;
  size_t awaited = 0;  ///< position in PricedProgram::awaited
};

struct PricedProgram {
  const Program* program = nullptr;
  std::vector<PricedBlock> blocks;
  /// No step holds a waiting instruction behind its first, or an awaited one before its last.
  std::vector<PricedWait> waits;  ///< ascending by `waiting`
  std::vector<int64_t> awaited;   ///< numbers of executed instructions that others wait for, ascending
};

/// `merge` = false keeps one step per instruction. Prices only what the schedule calls (the startup phase runs once,
/// not in a step). Throws what the cost model throws. `program` must outlive the result.
PricedProgram price(const Program& program, const CostModel& costs, int64_t devices_per_node, bool merge);

/// Seconds of each instruction of a block.
std::vector<Cost> price_block(const Program& program, const Block& block, const CostModel& costs,
                              int64_t devices_per_node);

/// What a reader should know about where the costs of these Programs come from (CostModel::note, of what they ask for).
std::string costs_note(std::span<const Program> programs, const CostModel& costs, int64_t devices_per_node);

/// How often each block is executed in one step.
std::vector<int64_t> block_executions(const Program& program);

}  // namespace foresail
