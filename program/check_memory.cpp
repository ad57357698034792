// Memory as a step uses it: every executed instruction is walked with its final addresses (of shard rank 0). What is read
// must have been written and not overwritten since, what is being sent must not change, buffers stay where they belong.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "ops/op_table.h"
#include "program/check_parts.h"
#include "program/interval_set.h"

namespace foresail {
namespace {

/// The values in slots and scratch. A value is what one instruction wrote, and read back as exactly that; only flat ranges
/// (parameters and gradients of whole units) are read and added to in parts, or several together.
class Values {
 public:
  struct Value {
    int64_t end = 0;
    bool flat = false;
    int64_t written = 0;              ///< Step::call_time of its writer
    const Buffer* buffer = nullptr;   ///< as which it was written
    const Buffer* read_as = nullptr;  ///< by the execution of a block that began at `read`
    int64_t read = -1;
  };

  /// The value in [begin, end); of several flat ones the oldest. Null if there is none.
  Value* find(int64_t begin, int64_t end) {
    auto at = values_.upper_bound(begin);
    if (at == values_.begin()) return nullptr;
    --at;
    Value* oldest = &at->second;
    if (at->first == begin && at->second.end == end) return oldest;
    for (int64_t covered = begin; at != values_.end(); ++at) {
      if (!at->second.flat || at->first > covered || at->second.end <= covered) return nullptr;
      if (at->second.written < oldest->written) oldest = &at->second;
      covered = at->second.end;
      if (covered >= end) return oldest;
    }
    return nullptr;
  }

  /// Whatever overlaps [begin, end) is gone as a whole.
  void kill(int64_t begin, int64_t end) {
    auto at = values_.lower_bound(begin);
    if (at != values_.begin() && std::prev(at)->second.end > begin) --at;
    while (at != values_.end() && at->first < end) at = values_.erase(at);
  }

  void write(int64_t begin, const Value& value) {
    kill(begin, value.end);
    values_[begin] = value;
  }

 private:
  std::map<int64_t, Value> values_;
};

constexpr const char* kUnwritten = "is read, but its bytes were never written or were overwritten";

bool inside(const Touch& touch, const Segment& segment) {
  return touch.begin >= segment.offset && touch.end <= segment.offset + segment.bytes;
}
bool begins_in(const Touch& touch, const Segment& segment) {
  return touch.begin >= segment.offset && touch.begin < segment.offset + segment.bytes;
}
bool overlap(const Touch& a, const Touch& b) { return a.begin < b.end && b.begin < a.end; }

/// `part` is shard rank 0's share of `whole`, and the other ranks' shares follow it.
bool is_own_part(const Touch& part, const Buffer& part_buffer, const Touch& whole, const Buffer& whole_buffer) {
  return part.begin == whole.begin && part_buffer.shard_stride == whole_buffer.shard_stride + (part.end - part.begin);
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
    const Instruction& instruction = *step.instruction;
    if (instruction.kind == InstructionKind::wait_send) {
      const auto here = [&](const Sent& sent) { return sent.channel == instruction.channel; };
      auto done = std::max<int64_t>(0, std::count_if(sent_.begin(), sent_.end(), here) - instruction.keep);
      std::erase_if(sent_, [&](const Sent& sent) { return here(sent) && done-- > 0; });
    }
    if (instruction.kind == InstructionKind::send) {
      sent_.push_back({instruction.channel, touches[0].begin, touches[0].end});
    }
    // The parts of a sum that belong to other ranks are left half done.
    if (instruction.kind == InstructionKind::reduce_scatter && overlap(touches[0], touches[1])) forget(touches[0]);
    for (const Touch& touch : touches) {
      if (touch.writes) write(step, touch, touches);
    }
  }

  void finish() {
    if (!sent_.empty()) problems_.add("a message is sent, but the step ends without waiting for it");
    if (!stale_.empty()) problems_.add("parameters are updated in shares, but not gathered afterwards");
  }

 private:
  struct Sent {
    int32_t channel;
    int64_t begin, end;
  };

  const Buffer& buffer(const Step& step, const Touch& touch) const {
    return step.block->buffers[static_cast<size_t>(touch.buffer)];
  }
  bool persistent(const Touch& touch) const { return touch.end <= program_.arena.persistent_bytes; }

  void check_place(const Step& step, const Touch& touch) {
    const Buffer& which = buffer(step, touch);
    const auto problem = [&](const char* text) {
      problems_.add(step, fmt::format("buffer '{}' {}", which.name, text));
    };
    const ArenaMap& arena = program_.arena;
    const int64_t stride = which.shard_stride, others = share_ranks(program_.mesh, which) - 1;
    const bool in_arena = touch.begin >= 0 && touch.end >= touch.begin && touch.end <= arena.bytes && stride >= 0 &&
                          (stride == 0 || others <= (arena.bytes - touch.end) / stride);
    if (!in_arena) {
      problem("lies outside the arena");
      return;
    }
    Touch furthest = touch;  // of the last shard rank
    furthest.end += stride * others;
    const bool misaligned = touch.begin % program_.alignment != 0 || (others > 0 && stride % program_.alignment != 0);
    if (misaligned && !inside(touch, arena.metrics) && which.share_of != ShareOf::tensor) {
      problems_.add(step, fmt::format("buffer '{}' is not aligned to {} bytes", which.name, program_.alignment));
    }
    if (touch.writes && (inside(touch, arena.data) || inside(touch, arena.step_inputs))) {
      problem("overwrites what the host provides");
    }
    for (const Segment* segment : {&arena.parameters, &arena.gradients, &arena.master, &arena.moment1, &arena.moment2,
                                   &arena.data, &arena.metrics, &arena.constants}) {
      if (begins_in(touch, *segment) && !inside(furthest, *segment)) problem("leaves its segment");
    }
    if (touch.begin < arena.persistent_bytes && touch.end > arena.persistent_bytes) problem("leaves its segment");
    check_slot(step, touch, problem);
  }

  /// A micro-batch touches only its own slots.
  template <typename Problem>
  void check_slot(const Step& step, const Touch& touch, const Problem& problem) const {
    const ScheduleEntry& entry = *step.entry;
    if (entry.micro_batch < 0) return;
    const Chunk& chunk = program_.chunks[static_cast<size_t>(entry.chunk)];
    const Anchor anchor = step.call->anchors[static_cast<size_t>(buffer(step, touch).base)];
    Segment place;
    if (anchor == Anchor::slot) {
      place = {program_.arena.slots.offset + entry.slot_offset, chunk.slot_bytes};
    } else if (anchor == Anchor::delayed_slot) {
      place = {program_.arena.slots.offset + entry.delayed_offset, chunk.delayed_bytes};
    } else if (anchor == Anchor::carried_slot) {
      place = {program_.arena.slots.offset + entry.carried_offset, chunk.carried_bytes};
    } else if (anchor == Anchor::data) {
      place = {program_.arena.data.offset + entry.micro_batch * program_.data_stride_bytes, program_.data_stride_bytes};
    } else {
      return;
    }
    if (!inside(touch, place)) problem("leaves the slot of its micro-batch");
  }

  /// Parameters and what the host writes hold values before the step; everything else must have been written in it.
  void check_read(const Step& step, const Touch& touch) {
    const ArenaMap& arena = program_.arena;
    const Buffer& which = buffer(step, touch);
    const auto problem = [&](const char* text) {
      problems_.add(step, fmt::format("buffer '{}' {}", which.name, text));
    };
    if (inside(touch, arena.parameters) && which.shard_stride == 0 && stale_.overlaps(touch.begin, touch.end)) {
      problem("is read before other ranks' updated shares of it are gathered");
    }
    for (const Segment* given : {&arena.parameters, &arena.master, &arena.moment1, &arena.moment2, &arena.data}) {
      if (inside(touch, *given)) return;
    }
    if (persistent(touch)) {
      if (!written_.covers(touch.begin, touch.end)) problem(kUnwritten);
      return;
    }
    Values::Value* value = values_.find(touch.begin, touch.end);
    if (value == nullptr) {
      problem(kUnwritten);
    } else if (const char* wrong = wrong_value(step, touch, *value)) {
      problem(wrong);
    }
  }

  /// There is a value, but is it the one that is meant? Tensors that share a place come one after the other.
  const char* wrong_value(const Step& step, const Touch& touch, Values::Value& value) {
    const Buffer& which = buffer(step, touch);
    const bool earlier = value.written < step.call_time;
    if (earlier && which.base == Register::scratch) return "is a temporary, but read from an earlier execution";
    if (value.flat) return nullptr;  // parts and unions of flat ranges have names of their own
    // A sum over ranks takes the place of the shares by its own name.
    const bool sums = step.instruction->kind == InstructionKind::all_reduce;
    if (sums) return earlier ? "is summed before it is written" : nullptr;
    if (!earlier) return value.buffer == &which ? nullptr : kUnwritten;
    if (outputs_of(*step.block)[static_cast<size_t>(touch.buffer)]) return "is read before it is written";
    // The next tensor in the same place, but nothing made it.
    if (value.read == step.call_time && value.read_as != &which) return "is read before it is written";
    value.read = step.call_time;
    value.read_as = &which;
    // Blocks of a layer call what they keep for each other by the same name.
    const bool kept =
        which.base == Register::saved || which.base == Register::delayed || which.base == Register::carried;
    return kept && value.buffer->name != which.name ? "is read, but something else was kept in its place" : nullptr;
  }

  /// Which buffers a block writes, not counting what it only adds to.
  const std::vector<bool>& outputs_of(const Block& block) {
    std::vector<bool>& outputs = outputs_[&block];
    if (!outputs.empty()) return outputs;
    outputs.resize(block.buffers.size());
    for (const Instruction& instruction : block.instructions) {
      const uint32_t accumulating = accumulating_outputs(instruction);
      for (size_t o = 0; o < instruction.outputs.size(); ++o) {
        if ((accumulating >> o & 1) == 0) outputs[static_cast<size_t>(instruction.outputs[o])] = true;
      }
    }
    return outputs;
  }

  void forget(const Touch& touch) {
    if (persistent(touch)) {
      written_.remove(touch.begin, touch.end);
    } else {
      values_.kill(touch.begin, touch.end);
    }
  }

  void write(const Step& step, const Touch& touch, const std::vector<Touch>& touches) {
    const Buffer& which = buffer(step, touch);
    for (const Sent& sent : sent_) {
      if (touch.begin < sent.end && sent.begin < touch.end) {
        problems_.add(step, fmt::format("buffer '{}' is overwritten while a message is sent from it", which.name));
      }
    }
    if (inside(touch, program_.arena.parameters)) update_stale(step, touch, which);
    if (persistent(touch)) {
      written_.add(touch.begin, touch.end);
      return;
    }
    if (touch.workspace) {
      values_.kill(touch.begin, touch.end);
      return;
    }
    // A part of a flat range, added to or changed in place, stays part of it.
    const bool in_place = std::any_of(touches.begin(), touches.end(), [&](const Touch& other) {
      return other.reads && other.begin == touch.begin && other.end == touch.end;
    });
    const Values::Value* old = in_place ? values_.find(touch.begin, touch.end) : nullptr;
    if (old != nullptr && old->flat) return;
    const InstructionKind kind = step.instruction->kind;
    const bool flat =
        which.type.shape.size() == 1 || kind == InstructionKind::all_gather || kind == InstructionKind::reduce_scatter;
    values_.write(touch.begin, {touch.end, flat, step.call_time, &which});
  }

  /// Between the update of shares inside whole parameters and their gathering the other ranks' shares are old.
  void update_stale(const Step& step, const Touch& touch, const Buffer& which) {
    if (step.instruction->kind == InstructionKind::all_gather) {
      stale_.remove(touch.begin, touch.end);
    } else if (which.shard_stride > 0 && share_ranks(program_.mesh, which) > 1) {
      stale_.add(touch.begin, touch.begin + which.shard_stride * share_ranks(program_.mesh, which));
    }
  }

  bool may_alias(const Step& step, size_t output, size_t input, const Touch& a, const Touch& b) const {
    const Instruction& instruction = *step.instruction;
    const bool shards = instruction.group == GroupKind::shard || instruction.group == GroupKind::expert_shard;
    if (instruction.kind == InstructionKind::all_gather) {
      return shards && is_own_part(b, buffer(step, b), a, buffer(step, a));
    }
    if (instruction.kind == InstructionKind::reduce_scatter) {
      return shards && is_own_part(a, buffer(step, a), b, buffer(step, b));
    }
    const bool same =
        a.begin == b.begin && a.end == b.end && buffer(step, a).shard_stride == buffer(step, b).shard_stride;
    if (!same) return false;
    if (instruction.kind == InstructionKind::all_reduce) return true;
    if (instruction.kind != InstructionKind::op) return false;
    if (instruction.inputs[input] == instruction.outputs[output] &&
        (accumulating_outputs(instruction) >> output & 1) != 0) {
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
        if (!overlap(a, b)) continue;
        if (i < inputs && !a.workspace && may_alias(step, o - inputs, i, a, b)) continue;
        problems_.add(step, fmt::format("buffers '{}' and '{}' overlap in one operator", buffer(step, a).name,
                                        buffer(step, b).name));
      }
    }
    if (instruction.kind == InstructionKind::all_reduce && touches[0].begin != touches[1].begin) {
      problems_.add(step, "an all_reduce is not in place");
    }
  }

  const Program& program_;
  Problems& problems_;
  IntervalSet written_;  ///< persistent bytes, beside what holds values before the step
  Values values_;        ///< slots and scratch
  std::vector<Sent> sent_;
  IntervalSet stale_;  ///< parameters of which other ranks have newer shares
  std::map<const Block*, std::vector<bool>> outputs_;
};

}  // namespace

void check_memory(const Program& program, Problems& problems) {
  MemoryCheck memory(program, problems);
  walk_step(program, true, [&](const Step& step, const std::vector<Touch>& touches) { memory.visit(step, touches); });
  memory.finish();
}

}  // namespace foresail
