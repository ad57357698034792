#include "tests/equivalence/mutations.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "ops/op_table.h"

namespace foresail::testing {
namespace {

/// Blocks that some call of a scheduled phase executes.
std::set<int32_t> executed_blocks(const Program& program) {
  std::set<int32_t> blocks;
  for (const ScheduleEntry& entry : program.schedule) {
    for (const Call& call : calls_of(program, entry)) blocks.insert(call.block);
  }
  return blocks;
}

struct Bytes {
  Register base{};
  int64_t begin = 0, end = 0;
  bool writes = false;
};

/// What an instruction touches; a buffer with a shard stride counts as all shards.
std::vector<Bytes> bytes_of(const Program& program, const Block& block, const Instruction& instruction) {
  std::vector<Bytes> all;
  const auto add = [&](int32_t index, bool writes) {
    const Buffer& buffer = block.buffers[static_cast<size_t>(index)];
    const int64_t shards = buffer.shard_stride * (share_ranks(program.mesh, buffer) - 1);
    all.push_back({buffer.base, buffer.offset, buffer.offset + buffer.type.bytes() + shards, writes});
  };
  for (const int32_t input : instruction.inputs) add(input, false);
  for (const int32_t output : instruction.outputs) add(output, true);
  if (instruction.workspace >= 0) add(instruction.workspace, true);
  return all;
}

/// Registers may hold any address, so only what lies behind the same one is known to be apart. Hidden states and the
/// layer's region of the slot are the same memory.
bool may_meet(const Bytes& a, const Bytes& b) {
  const auto in_slot = [](Register base) {
    return base == Register::saved || base == Register::x_in || base == Register::x_out || base == Register::scratch ||
           base == Register::hidden_gradient || base == Register::carried;
  };
  if (a.base == b.base) return a.begin < b.end && b.begin < a.end;
  return in_slot(a.base) && in_slot(b.base);
}

/// Whether one writes what the other touches, for certain (`sure`) or possibly.
bool conflict(const Program& program, const Block& block, size_t at, bool sure) {
  const auto first = bytes_of(program, block, block.instructions[at]);
  const auto second = bytes_of(program, block, block.instructions[at + 1]);
  for (const Bytes& a : first) {
    for (const Bytes& b : second) {
      if (!a.writes && !b.writes) continue;
      if (sure ? a.base == b.base && a.begin < b.end && b.begin < a.end : may_meet(a, b)) return true;
    }
  }
  return false;
}

template <typename Body>
void for_executed(const std::vector<Program>& stages, const Body& body) {
  for (const Program& program : stages) {
    for (const int32_t b : executed_blocks(program)) body(program, b, program.blocks[static_cast<size_t>(b)]);
  }
}

/// Sums of shares commute: neighbours that only add to the same place mean the same in either order, up to rounding.
bool both_accumulate(const Block& block, size_t at) {
  const auto accumulates = [](const Instruction& i) {
    return i.kind == InstructionKind::op && (i.op == OpKind::squared_norm || i.op == OpKind::linear_backward_weight);
  };
  return accumulates(block.instructions[at]) && accumulates(block.instructions[at + 1]);
}

}  // namespace

std::vector<Mutation> mutations_of(const std::vector<Program>& stages, MutationKind kind) {
  std::vector<Mutation> all;
  for_executed(stages, [&](const Program& program, int32_t b, const Block& block) {
    const auto count =
        static_cast<int32_t>(kind == MutationKind::resized ? block.buffers.size() : block.instructions.size());
    for (int32_t at = 0; at < count; ++at) {
      if (kind == MutationKind::swapped) {
        const auto i = static_cast<size_t>(at);
        if (at + 1 == count || !conflict(program, block, i, true) || both_accumulate(block, i)) continue;
      }
      all.push_back({kind, program.stage, b, at});
    }
  });
  return all;
}

std::vector<Mutation> independent_swaps(const std::vector<Program>& stages) {
  std::vector<Mutation> all;
  for_executed(stages, [&](const Program& program, int32_t b, const Block& block) {
    for (size_t at = 0; at + 1 < block.instructions.size(); ++at) {
      const Instruction &first = block.instructions[at], &second = block.instructions[at + 1];
      const bool both_operators = first.kind == InstructionKind::op && second.kind == InstructionKind::op;
      if (!both_operators || first.queue != second.queue || conflict(program, block, at, false)) continue;
      all.push_back({MutationKind::swapped, program.stage, b, static_cast<int32_t>(at)});
    }
  });
  return all;
}

void mutate(Program& program, const Mutation& mutation) {
  if (program.stage != mutation.stage) return;
  Block& block = program.blocks.at(static_cast<size_t>(mutation.block));
  const auto at = static_cast<size_t>(mutation.at);
  switch (mutation.kind) {
    case MutationKind::removed: block.instructions.erase(block.instructions.begin() + mutation.at); return;
    case MutationKind::swapped: std::swap(block.instructions.at(at), block.instructions.at(at + 1)); return;
    case MutationKind::resized: {
      int64_t& rows = block.buffers.at(at).type.shape.at(0);
      rows = rows % 2 == 0 ? rows / 2 : 2 * rows;
      return;
    }
  }
}

std::string text_of(const std::vector<Program>& stages, const Mutation& mutation) {
  const Block& block = stages[static_cast<size_t>(mutation.stage)].blocks[static_cast<size_t>(mutation.block)];
  const auto at = static_cast<size_t>(mutation.at);
  if (mutation.kind == MutationKind::resized) {
    return fmt::format("stage {} {}: buffer {} resized", mutation.stage, block.name, block.buffers[at].name);
  }
  const Instruction& instruction = block.instructions[at];
  return fmt::format("stage {} {}: instruction {} ({}) {}", mutation.stage, block.name, at,
                     instruction.kind == InstructionKind::op ? std::string(name_of(instruction.op)) : "communication",
                     mutation.kind == MutationKind::removed ? "removed" : "swapped with the next");
}

}  // namespace foresail::testing
