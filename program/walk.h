// One pass over a step as it executes: every instruction of every call of every schedule entry, with final addresses (of
// shard rank 0: the other ranks' are the same but for whole shares, Buffer::shard_stride).
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace foresail {

/// Bytes of the arena that an instruction touches on shard rank 0.
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
  int64_t time = 0;       ///< counts executed instructions
  int64_t call_time = 0;  ///< time of the first instruction of this execution of the block
};

/// Addresses that `instruction` touches: reads first, then writes. Accumulating outputs read and write. A send reads its
/// operand; wait_send touches nothing (what it releases is known only to the walker of the whole step).
std::vector<Touch> touches_of(const Block& block, const Instruction& instruction, const RegisterFile& registers);
/// The same into a list that is used again.
void touches_of(const Block& block, const Instruction& instruction, const RegisterFile& registers,
                std::vector<Touch>& touches);

/// Bit i: output i is read, added to and written. 0 for communication.
uint32_t accumulating_outputs(const Instruction& instruction);

/// Calls `visit(entry, call, block)` for every execution of a block; with `startup`, for the startup phase before the step.
template <typename Visit>
void walk_calls(const Program& program, bool startup, const Visit& visit) {
  const auto run = [&](const ScheduleEntry& entry) {
    for (const Call& call : calls_of(program, entry)) {
      if (!skips(entry, call)) visit(entry, call, program.blocks[static_cast<size_t>(call.block)]);
    }
  };
  if (startup) run({Phase::startup, 0, -1});
  for (const ScheduleEntry& entry : program.schedule) run(entry);
}

/// Calls `visit(step, touches)` for the whole schedule; with `startup`, for the startup phase before it.
template <typename Visit>
void walk_step(const Program& program, bool startup, const Visit& visit) {
  int64_t time = 0;
  std::vector<Touch> touches;
  walk_calls(program, startup, [&](const ScheduleEntry& entry, const Call& call, const Block& block) {
    const RegisterFile registers = registers_for(program, call, entry);
    const int64_t call_time = time;
    for (const Instruction& instruction : block.instructions) {
      touches_of(block, instruction, registers, touches);
      visit(Step{&entry, &call, &block, &instruction, time++, call_time}, touches);
    }
  });
}

}  // namespace foresail
