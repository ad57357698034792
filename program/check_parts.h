// The parts of check_program: each looks at one side of a Program and adds what it finds.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "program/program.h"
#include "program/walk.h"

namespace foresail {

/// Collects distinct problems.
class Problems {
 public:
  void add(std::string text);
  void add(const Block& block, const Instruction& instruction, const std::string& text);
  void add(const Step& step, const std::string& text) { add(*step.block, *step.instruction, text); }
  bool empty() const { return list_.empty(); }
  std::vector<std::string> take() { return std::move(list_); }

 private:
  std::set<std::string> seen_;
  std::vector<std::string> list_;
};

/// Ranks in a group of this kind of a Program's stage; 0: the stage is in none.
int64_t group_size(const Program& program, GroupKind group);

/// Every index and every slot of the Program points at something, and communication has the operands that it needs;
/// nothing else may be asked before.
void check_indices(const Program& program, Problems& problems);
/// What the header says about arena, batch, chunks and parameters fits together and fits the blocks.
void check_frame(const Program& program, Problems& problems);
/// Operands fit their operator, collectives their group and their queue, messages their channel.
void check_operands(const Program& program, Problems& problems);
/// Each micro-batch once in each phase, slots held, hand-overs undisturbed, the step's other phases in order.
void check_schedule(const Program& program, Problems& problems);
/// What is read was written and still lives; buffers lie where they may.
void check_memory(const Program& program, Problems& problems);

}  // namespace foresail
