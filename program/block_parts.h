// Small pieces from which blocks without a graph are put together.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "program/program.h"

namespace foresail {

inline int32_t add_buffer(Block& block, std::string name, Register base, int64_t offset, TensorType type,
                          MemoryKind memory, int64_t shard_stride = 0) {
  block.buffers.push_back({std::move(name), base, offset, std::move(type), memory, shard_stride});
  return static_cast<int32_t>(block.buffers.size()) - 1;
}

inline Instruction operation(OpKind kind, std::vector<int32_t> inputs, std::vector<int32_t> outputs, TimeKind time) {
  Instruction instruction;
  instruction.op = kind;
  instruction.inputs = std::move(inputs);
  instruction.outputs = std::move(outputs);
  instruction.time = time;
  return instruction;
}

inline Instruction collective(InstructionKind kind, int32_t input, int32_t output, GroupKind group, TimeKind time,
                              Queue queue) {
  Instruction instruction;
  instruction.kind = kind;
  instruction.inputs = {input};
  instruction.outputs = {output};
  instruction.group = group;
  instruction.time = time;
  instruction.queue = queue;
  return instruction;
}

/// `count` numbers of the metrics record from `first` on.
inline int32_t metrics_buffer(Block& block, const ArenaMap& arena, StepMetric first, int64_t count) {
  return add_buffer(block, "metrics", Register::absolute, place_of(arena, first), {DType::f64, {count}},
                    MemoryKind::scratch);
}
inline int32_t metric_buffer(Block& block, const ArenaMap& arena, StepMetric metric) {
  return metrics_buffer(block, arena, metric, 1);
}
inline int32_t metrics_record(Block& block, const ArenaMap& arena) {
  return metrics_buffer(block, arena, StepMetric{}, kStepMetrics);
}

}  // namespace foresail
