// Programs written by hand and costs that are plain numbers, so that a test can say what time must come out.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/simulator/cost_model.h"
#include "program/program.h"
#include "spec/strategy.h"

namespace foresail::test {

/// An op lasts as many seconds as its output has elements; collectives and messages as given.
class PlainCosts : public CostModel {
 public:
  double message = 0, collective = 0, issue = 0, spread = 0, common = 0, factor = 1;

  Cost op_seconds(const OpInstance& op) const override {
    return {factor * static_cast<double>(op.outputs.at(0).elements()), spread};
  }
  Cost collective_seconds(InstructionKind, int64_t, const GroupSpan& span) const override {
    return {span.size > 1 ? factor * collective : 0, spread};
  }
  Cost message_seconds(int64_t, bool) const override { return {factor * message, spread}; }
  double issue_seconds() const override { return issue; }
  bool calibrated() const override { return true; }
  double common_spread() const override { return common; }
};

/// Bytes of the arena that an instruction writes and others may read, in any block.
struct Value {
  int64_t address = 0, elements = 0;
};

/// A block whose buffers are made as instructions are added, each at its own address.
class BlockBuilder {
 public:
  Value op(int64_t seconds, TimeKind time = TimeKind::compute, const std::vector<Value>& reads = {});
  /// Reduces `value` in place.
  Value collective(GroupKind group, Queue queue, TimeKind time, const Value& value);
  Value collective(GroupKind group, Queue queue, TimeKind time) { return collective(group, queue, time, fresh(1)); }
  void send(int peer, int channel, Queue queue, const Value& value);
  void send(int peer, int channel) { send(peer, channel, Queue::compute, fresh(1)); }
  Value receive(int peer, int channel, Queue queue = Queue::compute);
  void wait_send(int channel, Queue queue = Queue::compute);
  Block finish(std::string name);

 private:
  static Value fresh(int64_t elements);
  int32_t buffer(const Value& value);
  void add(Instruction instruction) { block_.instructions.push_back(std::move(instruction)); }
  Block block_;
};

/// Seconds of one micro-batch in one model chunk.
struct ChunkSeconds {
  int64_t forward = 0, input_gradient = 0, weight_gradient = 0;
};

/// Every stage of a pipeline of equal chunks under the strategy's schedule, with blocking messages. Where the schedule does
/// not split backward, it lasts both gradients.
std::vector<Program> pipeline(const Strategy& strategy, int micro_batches, const ChunkSeconds& seconds);
/// 1F1B with a backward of `backward` seconds.
std::vector<Program> pipeline(int stages, int micro_batches, int64_t forward, int64_t backward);

/// Appends to every stage the norm's all-reduce over all ranks, if `clips`, and an update of `seconds`.
void add_optimizer(std::vector<Program>& stages, bool clips, int64_t seconds);

/// One stage that runs `blocks` once each, in order, in these phases.
Program sequence(const std::vector<std::pair<Phase, Block>>& blocks, const Mesh& mesh = {});

/// A mesh of these degrees without ZeRO.
Mesh mesh_of(int pp, int dp, int tp);

}  // namespace foresail::test
