#include "program/walk.h"

#include "ops/op_table.h"

namespace foresail {

uint32_t accumulating_outputs(const Instruction& instruction) {
  return instruction.kind == InstructionKind::op ? info(instruction.op).accumulating_outputs : 0;
}

void touches_of(const Block& block, const Instruction& instruction, const RegisterFile& registers,
                std::vector<Touch>& touches) {
  touches.clear();
  const auto add = [&](int32_t index, bool reads, bool writes, bool workspace) {
    const Buffer& buffer = block.buffers[static_cast<size_t>(index)];
    const int64_t begin = registers[static_cast<size_t>(buffer.base)] + buffer.offset;
    touches.push_back({begin, begin + buffer.type.bytes(), index, reads, writes, workspace});
  };
  for (const int32_t input : instruction.inputs) add(input, true, false, false);
  const uint32_t accumulating = accumulating_outputs(instruction);
  for (size_t i = 0; i < instruction.outputs.size(); ++i) {
    add(instruction.outputs[i], (accumulating >> i & 1) != 0, true, false);
  }
  if (instruction.workspace >= 0) add(instruction.workspace, false, true, true);
}

std::vector<Touch> touches_of(const Block& block, const Instruction& instruction, const RegisterFile& registers) {
  std::vector<Touch> touches;
  touches_of(block, instruction, registers, touches);
  return touches;
}

}  // namespace foresail
