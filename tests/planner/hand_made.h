// Programs written by hand and costs that are plain numbers, so that a test can say what time must come out.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/simulator/cost_model.h"
#include "program/program.h"

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

/// A block whose buffers are made as instructions are added.
class BlockBuilder {
 public:
  int op(int64_t seconds, TimeKind time = TimeKind::compute, std::vector<int32_t> waits = {});
  int collective(GroupKind group, Queue queue, TimeKind time, std::vector<int32_t> waits = {});
  int send(int peer, int channel, Queue queue = Queue::compute);
  int receive(int peer, int channel, Queue queue = Queue::compute);
  int wait_send(int channel);
  Block finish(std::string name);

 private:
  int32_t buffer(int64_t elements);
  int add(Instruction instruction);
  Block block_;
};

/// Forward of `forward` seconds and backward of `backward` seconds per micro-batch under 1F1B, with blocking messages.
std::vector<Program> pipeline(int stages, int micro_batches, int64_t forward, int64_t backward);

/// One stage that runs `blocks` once each, in order, in these phases.
Program sequence(std::vector<std::pair<Phase, Block>> blocks, Mesh mesh = {});

}  // namespace foresail::test
