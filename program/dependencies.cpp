#include "program/dependencies.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>

#include "program/walk.h"

namespace foresail {
namespace {

constexpr int64_t kNever = -1;

struct Range {
  int64_t begin = 0, end = 0;
  bool reads = false, writes = false;
};

/// A buffer as an instruction touches it, before registers are added.
struct Operand {
  Register base{};
  Range range;
};

/// Operands of every instruction of a block. Made once: blocks are executed many times.
struct BlockOperands {
  std::vector<Operand> operands;
  std::vector<size_t> first;  ///< by instruction, and one past the last
};

BlockOperands operands_of(const Block& block, const Mesh& mesh) {
  BlockOperands result;
  const auto add = [&](int32_t index, bool reads, bool writes) {
    const Buffer& buffer = block.buffers[static_cast<size_t>(index)];
    const int64_t others = share_ranks(mesh, buffer) - 1;
    const int64_t end = buffer.offset + buffer.type.bytes() + others * buffer.shard_stride;
    result.operands.push_back({buffer.base, {buffer.offset, end, reads, writes}});
  };
  for (const Instruction& instruction : block.instructions) {
    result.first.push_back(result.operands.size());
    const uint32_t accumulating = accumulating_outputs(instruction);
    for (const int32_t input : instruction.inputs) add(input, true, false);
    for (size_t i = 0; i < instruction.outputs.size(); ++i) {
      add(instruction.outputs[i], (accumulating >> i & 1) != 0, true);
    }
    if (instruction.workspace >= 0) add(instruction.workspace, false, true);
  }
  result.first.push_back(result.operands.size());
  return result;
}

/// Calls `visit(instruction, ranges)` for every executed instruction in issue order.
class Walk {
 public:
  explicit Walk(const Program& program) : program_(program) {
    for (const Block& block : program.blocks) blocks_.push_back(operands_of(block, program.mesh));
  }

  template <typename Visit>
  void run(const Visit& visit) {
    for (const ScheduleEntry& entry : program_.schedule) {
      if (entry.phase == Phase::startup) continue;
      for (const Call& call : calls_of(program_, entry)) {
        if (!skips(entry, call)) run_call(entry, call, visit);
      }
    }
  }

 private:
  template <typename Visit>
  void run_call(const ScheduleEntry& entry, const Call& call, const Visit& visit) {
    const RegisterFile registers = registers_for(program_, call, entry);
    const auto block = static_cast<size_t>(call.block);
    const BlockOperands& operands = blocks_[block];
    const auto& instructions = program_.blocks[block].instructions;
    for (size_t i = 0; i < instructions.size(); ++i) {
      ranges_.clear();
      for (size_t o = operands.first[i]; o < operands.first[i + 1]; ++o) {
        Range range = operands.operands[o].range;
        const int64_t base = registers[static_cast<size_t>(operands.operands[o].base)];
        range.begin += base;
        range.end += base;
        ranges_.push_back(range);
      }
      visit(instructions[i], ranges_);
    }
  }

  const Program& program_;
  std::vector<BlockOperands> blocks_;
  std::vector<Range> ranges_;
};

/// The arena cut where a buffer of an instruction beside the compute queue begins or ends. Such a buffer covers whole
/// pieces, so two instructions on different queues touch a common byte if and only if they touch a common piece; compute
/// instructions among themselves need no order. Bytes that only the compute queue touches are in no piece.
class Pieces {
 public:
  explicit Pieces(const std::vector<std::pair<int64_t, int64_t>>& ranges) {
    std::map<int64_t, int> open;  // change of the number of ranges that cover the bytes from here on
    for (const auto& [begin, end] : ranges) ++open[begin], --open[end];
    int covering = 0;
    for (const auto& [at, change] : open) {
      covering += change;
      begins_.push_back(at);
      covered_.push_back(covering > 0);
    }
  }

  /// Calls `visit(piece)` for the covered pieces that [begin, end) touches.
  template <typename Visit>
  void each(int64_t begin, int64_t end, const Visit& visit) const {
    if (begins_.empty() || begin >= end || end <= begins_.front() || begin >= begins_.back()) return;
    auto at = static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), begin) - begins_.begin());
    for (at = at > 0 ? at - 1 : 0; at < begins_.size() && begins_[at] < end; ++at) {
      if (covered_[at]) visit(at);
    }
  }

  size_t size() const { return begins_.size(); }

 private:
  std::vector<int64_t> begins_;  // ascending; a piece reaches to the next one's beginning
  std::vector<bool> covered_;
};

/// The latest instruction of each queue.
using Latest = std::array<int64_t, kQueueCount>;

/// What has happened to a piece of the arena.
struct History {
  Latest read, written;
};

class Derivation {
 public:
  explicit Derivation(Pieces pieces) : pieces_(std::move(pieces)) {
    Latest never;
    never.fill(kNever);
    history_.assign(pieces_.size(), {never, never});
    waited_.fill(never);
  }

  void visit(const Instruction& instruction, const std::vector<Range>& ranges) {
    const auto queue = static_cast<size_t>(instruction.queue);
    Latest needed;
    needed.fill(kNever);
    for (const Range& range : ranges) need(range, needed);
    if (instruction.kind == InstructionKind::wait_send) release(instruction, queue, needed);
    for (size_t other = 0; other < kQueueCount; ++other) {
      if (other == queue || needed[other] <= waited_[queue][other]) continue;
      waited_[queue][other] = needed[other];
      result_.waits.push_back({number_, needed[other], static_cast<Queue>(other)});
    }
    for (const Range& range : ranges) note(range, queue);
    if (instruction.kind == InstructionKind::send) {
      sent_[instruction.channel].push_back({ranges.at(0), queue, number_});
    }
    ++number_;
  }

  Dependencies take() { return std::move(result_); }

 private:
  struct Sent {
    Range range;
    size_t queue = 0;
    int64_t number = 0;
  };

  void need(const Range& range, Latest& needed) const {
    const auto raise = [&](const Latest& latest) {
      for (size_t q = 0; q < kQueueCount; ++q) needed[q] = std::max(needed[q], latest[q]);
    };
    pieces_.each(range.begin, range.end, [&](size_t piece) {
      raise(history_[piece].written);
      if (range.writes) raise(history_[piece].read);
    });
  }

  void note(const Range& range, size_t queue) {
    pieces_.each(range.begin, range.end, [&](size_t piece) {
      if (range.reads) history_[piece].read[queue] = number_;
      if (range.writes) history_[piece].written[queue] = number_;
    });
  }

  /// wait_send: the sent buffers are read until here.
  void release(const Instruction& wait, size_t queue, Latest& needed) {
    auto& outstanding = sent_[wait.channel];
    for (; static_cast<int32_t>(outstanding.size()) > wait.keep; outstanding.pop_front()) {
      const Sent& sent = outstanding.front();
      needed[sent.queue] = std::max(needed[sent.queue], sent.number);
      note(sent.range, queue);
    }
  }

  Pieces pieces_;
  std::vector<History> history_;              // by piece
  std::array<Latest, kQueueCount> waited_;    // by waiting queue
  std::map<int32_t, std::deque<Sent>> sent_;  // by channel, not waited for
  Dependencies result_;
  int64_t number_ = 0;
};

/// Queues of the blocks that the schedule may call; a queue that only the startup phase uses costs time, not truth.
bool uses_one_queue(const Program& program) {
  std::array<bool, kQueueCount> used{};
  for (const Block& block : program.blocks) {
    for (const Instruction& instruction : block.instructions) used[static_cast<size_t>(instruction.queue)] = true;
  }
  return std::count(used.begin(), used.end(), true) <= 1;
}

/// Distinct byte ranges that instructions beside the compute queue touch, wait_send's included.
std::vector<std::pair<int64_t, int64_t>> ranges_beside_compute(Walk& walk) {
  std::vector<std::pair<int64_t, int64_t>> found;
  size_t distinct = 0;
  const auto compact = [&] {
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    distinct = found.size();
  };
  walk.run([&](const Instruction& instruction, const std::vector<Range>& ranges) {
    // Every send counts: its wait_send may run on another queue than the send.
    if (instruction.queue == Queue::compute && instruction.kind != InstructionKind::send) return;
    for (const Range& range : ranges) found.emplace_back(range.begin, range.end);
    if (found.size() > 2 * distinct + 65536) compact();  // the same buffers come again with every micro-batch
  });
  compact();
  return found;
}

}  // namespace

Dependencies dependencies_of(const Program& program) {
  if (uses_one_queue(program)) return {};
  Walk walk(program);
  Derivation derivation{Pieces(ranges_beside_compute(walk))};
  walk.run(
      [&](const Instruction& instruction, const std::vector<Range>& ranges) { derivation.visit(instruction, ranges); });
  return derivation.take();
}

}  // namespace foresail
