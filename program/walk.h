// One pass over a step as it executes: every instruction of every call of every schedule entry, with final addresses.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace foresail {

/// Bytes of the arena that an instruction touches.
struct Touch {
  int64_t begin = 0, end = 0;
  int32_t buffer = 0;  ///< of the block
  bool reads = false, writes = false;
  bool workspace = false;
};

/// Where execution stands.
struct Step {
  const ScheduleEntry* entry = nullptr;
  const Call* call = nullptr;
  const Block* block = nullptr;
  const Instruction* instruction = nullptr;
  int64_t time = 0;  ///< counts executed instructions
};

/// Addresses that `instruction` touches: reads first, then writes. Accumulating outputs read and write. A send reads its
/// operand; wait_send touches nothing (what it releases is known only to the walker of the whole step).
std::vector<Touch> touches_of(const Block& block, const Instruction& instruction, const RegisterFile& registers);

/// Calls `visit(step, touches)` for the whole schedule; with `startup`, for the startup phase before it.
template <typename Visit>
void walk_step(const Program& program, bool startup, const Visit& visit) {
  int64_t time = 0;
  const auto run = [&](const ScheduleEntry& entry) {
    for (const Call& call : program.calls[static_cast<size_t>(entry.phase)]) {
      const RegisterFile registers = registers_for(program, call, entry);
      const Block& block = program.blocks[static_cast<size_t>(call.block)];
      for (const Instruction& instruction : block.instructions) {
        visit(Step{&entry, &call, &block, &instruction, time++}, touches_of(block, instruction, registers));
      }
    }
  };
  if (startup) run({Phase::startup, 0, -1, 0});
  for (const ScheduleEntry& entry : program.schedule) run(entry);
}

}  // namespace foresail
