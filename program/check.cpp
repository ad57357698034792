#include "program/check.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "program/check_parts.h"
#include "program/schedule.h"

namespace foresail {
namespace {

constexpr size_t kMostProblems = 20;  ///< one defect repeats in every layer; a user needs it once

struct OperandCount {
  size_t inputs, outputs;
};
std::optional<OperandCount> operand_count(InstructionKind kind) {
  switch (kind) {
    case InstructionKind::op: return std::nullopt;  // the op table knows
    case InstructionKind::send: return OperandCount{1, 0};
    case InstructionKind::receive: return OperandCount{0, 1};
    case InstructionKind::wait_send: return OperandCount{0, 0};
    default: return OperandCount{1, 1};
  }
}

class IndexCheck {
 public:
  IndexCheck(const Program& program, Problems& problems) : program_(program), problems_(problems) {}

  void run() {
    for (const Block& block : program_.blocks) check_block(block);
    for (const auto& lists : program_.calls) {
      for (const auto& list : lists) {
        for (const Call& call : list) {
          if (!below(call.block, program_.blocks.size())) problems_.add("a call names a block that does not exist");
        }
      }
    }
    for (const ScheduleEntry& entry : program_.schedule) check_entry(entry);
  }

 private:
  static bool below(int64_t index, size_t count) { return index >= 0 && index < static_cast<int64_t>(count); }

  void check_block(const Block& block) {
    for (const Instruction& instruction : block.instructions) {
      bool valid = instruction.workspace == -1 || below(instruction.workspace, block.buffers.size());
      for (const auto* operands : {&instruction.inputs, &instruction.outputs}) {
        for (const int32_t operand : *operands) valid = valid && below(operand, block.buffers.size());
      }
      if (!valid) problems_.add(block, instruction, "an operand is no buffer of the block");
      const auto count = operand_count(instruction.kind);
      if (count && (instruction.inputs.size() != count->inputs || instruction.outputs.size() != count->outputs ||
                    instruction.workspace >= 0)) {
        problems_.add(block, instruction, "communication has the wrong number of operands");
      }
    }
  }

  void check_entry(const ScheduleEntry& entry) {
    if (!of_micro_batch(entry.phase)) {
      if (entry.micro_batch != -1) problems_.add(fmt::format("{} belongs to no micro-batch", name_of(entry.phase)));
      return;
    }
    if (!below(entry.chunk, program_.chunks.size())) {
      problems_.add(fmt::format("the schedule runs chunk {}, which does not exist", entry.chunk));
      return;
    }
    const Chunk& chunk = program_.chunks[static_cast<size_t>(entry.chunk)];
    if (entry.micro_batch < 0 || entry.micro_batch >= program_.micro_batches) {
      problems_.add(fmt::format("the schedule runs micro-batch {} of {}", entry.micro_batch, program_.micro_batches));
    }
    if (entry.slot < 0 || entry.slot >= chunk.slots) {
      problems_.add(fmt::format("chunk {} has no slot {}", entry.chunk, entry.slot));
    }
    const bool carries = chunk.carried_slots > 0 && entry.phase != Phase::forward;
    if (carries && (entry.carried_slot < 0 || entry.carried_slot >= chunk.carried_slots)) {
      problems_.add(fmt::format("chunk {} has no carried slot {}", entry.chunk, entry.carried_slot));
    }
  }

  const Program& program_;
  Problems& problems_;
};

}  // namespace

void Problems::add(std::string text) {
  if (seen_.size() < kMostProblems && seen_.insert(text).second) list_.push_back(std::move(text));
}

void Problems::add(const Block& block, const Instruction& instruction, const std::string& text) {
  add(fmt::format("{}, instruction {}: {}", block.name, &instruction - block.instructions.data(), text));
}

void check_indices(const Program& program, Problems& problems) { IndexCheck(program, problems).run(); }

std::vector<std::string> check_program(const Program& program) {
  Problems problems;
  check_indices(program, problems);
  if (!problems.empty()) return problems.take();
  check_frame(program, problems);
  check_operands(program, problems);
  check_schedule(program, problems);
  check_memory(program, problems);
  return problems.take();
}

}  // namespace foresail
