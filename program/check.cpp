#include "program/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "core/error.h"
#include "ops/op_table.h"
#include "program/walk.h"

namespace foresail {
namespace {

constexpr size_t kMostProblems = 20;  ///< one defect repeats in every layer; a user needs it once

/// Collects distinct problems.
class Problems {
 public:
  void add(std::string text) {
    if (seen_.size() < kMostProblems && seen_.insert(text).second) list_.push_back(std::move(text));
  }
  void add(const Step& step, const std::string& text) {
    add(fmt::format("{}, instruction {}: {}", step.block->name, step.instruction - step.block->instructions.data(),
                    text));
  }
  std::vector<std::string> take() { return std::move(list_); }

 private:
  std::set<std::string> seen_;
  std::vector<std::string> list_;
};

/// Which bytes outside parameters and data hold a value.
class ValidBytes {
 public:
  bool covers(int64_t begin, int64_t end) const {
    auto at = ranges_.upper_bound(begin);
    if (at == ranges_.begin()) return false;
    --at;
    int64_t covered = begin;
    while (at != ranges_.end() && at->first <= covered && at->second.end > covered) {
      covered = at->second.end;
      if (covered >= end) return true;
      ++at;
    }
    return false;
  }

  /// Whether [begin, end) is one value that was written as a whole.
  bool holds_value(int64_t begin, int64_t end) const {
    const auto at = ranges_.find(begin);
    return at != ranges_.end() && at->second.end == end;
  }

  /// A new value: whatever it overlaps is gone as a whole.
  void write_value(int64_t begin, int64_t end) {
    auto at = ranges_.lower_bound(begin);
    if (at != ranges_.begin() && std::prev(at)->second.end > begin) at = ranges_.erase(std::prev(at));
    while (at != ranges_.end() && at->first < end) at = ranges_.erase(at);
    ranges_[begin] = {end};
  }

  /// More bytes that hold something; neighbours stay.
  void write_bytes(int64_t begin, int64_t end) {
    if (!covers(begin, end)) write_value(begin, end);
  }

 private:
  struct Value {
    int64_t end;
  };
  std::map<int64_t, Value> ranges_;
};

bool inside(const Touch& touch, const Segment& segment) {
  return touch.begin >= segment.offset && touch.end <= segment.offset + segment.bytes;
}

class MemoryCheck {
 public:
  MemoryCheck(const Program& program, Problems& problems) : program_(program), problems_(problems) {}

  void visit(const Step& step, const std::vector<Touch>& touches) {
    for (const Touch& touch : touches) check_place(step, touch);
    check_overlaps(step, touches);
    for (const Touch& touch : touches) {
      if (touch.reads) check_read(step, touch);
    }
    for (const Touch& touch : touches) {
      if (!touch.writes) continue;
      if (touch.end <= program_.arena.persistent_bytes) {
        valid_.write_bytes(touch.begin, touch.end);
      } else {
        valid_.write_value(touch.begin, touch.end);
      }
    }
  }

 private:
  const Buffer& buffer(const Step& step, const Touch& touch) const { return step.block->buffers[touch.buffer]; }

  void check_place(const Step& step, const Touch& touch) {
    const std::string& name = buffer(step, touch).name;
    if (touch.begin < 0 || touch.end > program_.arena.bytes) {
      problems_.add(step, fmt::format("buffer '{}' lies outside the arena", name));
    }
    const bool metrics = inside(touch, program_.arena.metrics);
    if (!metrics && touch.begin % program_.alignment != 0) {
      problems_.add(step, fmt::format("buffer '{}' is not aligned to {} bytes", name, program_.alignment));
    }
    if (touch.writes && (inside(touch, program_.arena.data) || inside(touch, program_.arena.step_inputs))) {
      problems_.add(step, fmt::format("buffer '{}' overwrites what the host provides", name));
    }
  }

  /// Parameters and what the host writes hold values before the step; everything else must have been written in it.
  void check_read(const Step& step, const Touch& touch) {
    const ArenaMap& arena = program_.arena;
    for (const Segment* given : {&arena.parameters, &arena.master, &arena.moment1, &arena.moment2, &arena.data}) {
      if (inside(touch, *given)) return;
    }
    const bool persistent = touch.end <= arena.persistent_bytes;
    const bool known = persistent ? valid_.covers(touch.begin, touch.end) : valid_.holds_value(touch.begin, touch.end);
    if (!known) {
      problems_.add(step, fmt::format("buffer '{}' is read, but its bytes were never written or were overwritten",
                                      buffer(step, touch).name));
    }
  }

  bool may_alias(const Instruction& instruction, size_t output, size_t input, const Touch& a, const Touch& b) const {
    if (a.begin != b.begin || a.end != b.end) return false;
    if (instruction.kind == InstructionKind::all_reduce) return true;
    if (instruction.kind != InstructionKind::op) return false;
    if (instruction.inputs[input] == instruction.outputs[output] &&
        (info(instruction.op).accumulating_outputs >> output & 1) != 0) {
      return true;
    }
    const auto& pairs = info(instruction.op).in_place;
    return std::any_of(pairs.begin(), pairs.end(), [&](const InPlace& pair) {
      return pair.output == static_cast<int>(output) && pair.input == static_cast<int>(input);
    });
  }

  void check_overlaps(const Step& step, const std::vector<Touch>& touches) {
    const Instruction& instruction = *step.instruction;
    const size_t inputs = instruction.inputs.size();
    for (size_t o = inputs; o < touches.size(); ++o) {
      for (size_t i = 0; i < o; ++i) {
        const Touch &a = touches[o], &b = touches[i];
        if (a.begin >= b.end || b.begin >= a.end) continue;
        if (i < inputs && !a.workspace && may_alias(instruction, o - inputs, i, a, b)) continue;
        problems_.add(step, fmt::format("buffers '{}' and '{}' overlap in one operator", buffer(step, a).name,
                                        buffer(step, b).name));
      }
    }
  }

  const Program& program_;
  Problems& problems_;
  ValidBytes valid_;
};

/// Outputs have the shapes that the op table infers from the inputs.
void check_shapes(const Program& program, const Block& block, Problems& problems) {
  for (size_t n = 0; n < block.instructions.size(); ++n) {
    const Instruction& instruction = block.instructions[n];
    const auto problem = [&](const std::string& text) {
      problems.add(fmt::format("{}, instruction {}: {}", block.name, n, text));
    };
    for (const int32_t wait : instruction.waits) {
      if (wait < 0 || wait >= static_cast<int32_t>(n))
        problem("it waits for an instruction that does not come before it");
    }
    if (instruction.kind != InstructionKind::op || !info(instruction.op).infer) continue;
    std::vector<GraphTensor> inputs;
    for (const int32_t input : instruction.inputs) {
      const Buffer& buffer = block.buffers[input];
      GraphTensor tensor{buffer.name, TensorRole::activation, buffer.type.dtype, {}, -1};
      for (const int64_t size : buffer.type.shape) tensor.dims.push_back({DimName::fixed, size});
      inputs.push_back(std::move(tensor));
    }
    try {
      const auto inferred = info(instruction.op).infer(inputs, instruction.attributes, program.precision);
      if (inferred.size() != instruction.outputs.size()) problem("it has the wrong number of outputs");
      for (size_t i = 0; i < std::min(inferred.size(), instruction.outputs.size()); ++i) {
        TensorType expected{inferred[i].dtype, {}};
        for (const Dim& dim : inferred[i].dims) expected.shape.push_back(dim.size);
        if (expected != block.buffers[instruction.outputs[i]].type) {
          problem(fmt::format("output '{}' has the wrong shape", block.buffers[instruction.outputs[i]].name));
        }
      }
    } catch (const std::exception& error) {
      problem(fmt::format("operands do not fit {} ({})", name_of(instruction.op), error.what()));
    }
  }
}

void check_schedule(const Program& program, Problems& problems) {
  std::map<int32_t, int32_t> held;  // slot -> micro-batch
  std::set<int32_t> forward, backward;
  const bool trains = !program.calls[static_cast<size_t>(Phase::backward)].empty();
  for (const ScheduleEntry& entry : program.schedule) {
    if (entry.phase == Phase::forward) {
      if (!forward.insert(entry.micro_batch).second) {
        problems.add(fmt::format("micro-batch {} runs forward twice", entry.micro_batch));
      }
      if (trains && !held.try_emplace(entry.slot, entry.micro_batch).second) {
        problems.add(fmt::format("slot {} is taken when micro-batch {} enters it", entry.slot, entry.micro_batch));
      }
    }
    if (entry.phase == Phase::backward) {
      if (!backward.insert(entry.micro_batch).second) {
        problems.add(fmt::format("micro-batch {} runs backward twice", entry.micro_batch));
      }
      const auto slot = held.find(entry.slot);
      if (slot == held.end() || slot->second != entry.micro_batch) {
        problems.add(fmt::format("micro-batch {} runs backward in a slot that does not hold it", entry.micro_batch));
      } else {
        held.erase(slot);
      }
    }
  }
  const auto all = static_cast<size_t>(program.micro_batches);
  if (forward.size() != all) problems.add(fmt::format("{} of {} micro-batches run forward", forward.size(), all));
  if (trains && backward.size() != all) {
    problems.add(fmt::format("{} of {} micro-batches run backward", backward.size(), all));
  }
  if (program.schedule.empty() || (trains && program.schedule.front().phase != Phase::begin_step)) {
    problems.add("a training step does not begin with begin_step");
  }
}

}  // namespace

std::vector<std::string> check_program(const Program& program) {
  Problems problems;
  for (const Block& block : program.blocks) check_shapes(program, block, problems);
  check_schedule(program, problems);
  MemoryCheck memory(program, problems);
  walk_step(program, true, [&](const Step& step, const std::vector<Touch>& touches) { memory.visit(step, touches); });
  return problems.take();
}

}  // namespace foresail
