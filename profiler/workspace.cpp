#include "profiler/workspace.h"

#include <algorithm>

#include "program/compile.h"

namespace foresail {

std::map<std::string, int64_t> workspace_of(const Program& program, Device& device) {
  std::map<std::string, int64_t> result;
  for (const Block& block : program.blocks) {
    for (const Instruction& instruction : block.instructions) {
      if (instruction.kind != InstructionKind::op) continue;
      const OpInstance op = op_instance(block, instruction);
      if (const int64_t bytes = device.workspace_bytes(op); bytes > 0) {
        int64_t& known = result[signature(op)];
        known = std::max(known, bytes);
      }
    }
  }
  return result;
}

void add_workspace(Target& target, const ModelSpec& model, const Job& job, const Strategy& strategy, Device& device) {
  for (int stage = 0; stage < strategy.pp; ++stage) {
    const ProgramSet set = compile(model, job, strategy, target, stage);
    for (const Program* program : {&set.train, &set.evaluate}) {
      for (const auto& [signature, bytes] : workspace_of(*program, device)) {
        int64_t& known = target.workspace_bytes[signature];
        known = std::max(known, bytes);
      }
    }
  }
}

}  // namespace foresail
