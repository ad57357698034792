// From Programs to what the hot loop needs: every instruction with its kernel, its operand offsets and its partners
// resolved, so that executing one takes additions and a call.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "kernels/device.h"
#include "program/program.h"

namespace foresail {

/// Address = arena + registers[base] + offset; this rank's shard is in the offset.
struct BoundOperand {
  uint8_t base = 0;
  int64_t offset = 0;
};

inline constexpr int kMostOperands = 16;

struct BoundInstruction {
  InstructionKind kind = InstructionKind::op;
  Queue queue = Queue::compute;
  std::unique_ptr<Kernel> kernel;  ///< of an op
  int32_t first_operand = 0;       ///< inputs, then outputs, in BoundBlock::operands
  int32_t inputs = 0, outputs = 0;
  int32_t workspace = -1;  ///< index into BoundBlock::operands, or -1
  GroupId group = -1;      ///< of a collective
  int32_t peer = -1;       ///< world rank, of send and receive
  int32_t channel = 0;
  int32_t keep = 0;  ///< of wait_send
  DType dtype = DType::f32;
  int64_t count = 0;  ///< elements of a collective (all_gather, reduce_scatter, all_to_all: of one member's part)
  int64_t bytes = 0;  ///< of a message or a ring shift
};

struct BoundBlock {
  std::vector<BoundOperand> operands;
  std::vector<BoundInstruction> instructions;
};

/// Binds every block. Throws bad_input when the back end lacks a kernel or wants more workspace than was laid out.
std::vector<BoundBlock> bind_blocks(const Program& program, Device& device, const Communicator& communicator,
                                    int world_rank);

/// Where the micro-batch's token ids lie: the operand of the embedding or of the loss that addresses the data region.
struct DataOperands {
  int64_t tokens_offset = -1, targets_offset = -1;  ///< within the micro-batch's part; -1: this stage reads none
};
DataOperands find_data_operands(const Program& program);

}  // namespace foresail
