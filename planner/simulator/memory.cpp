// What a compiled Program says about memory and, with a step time, about rates.
#include <algorithm>

#include "core/error.h"
#include "ops/op_table.h"
#include "planner/simulator/priced_program.h"
#include "planner/simulator/simulator.h"
#include "program/slots.h"

namespace foresail {
namespace {

/// FLOPs of one replayed product or attention. Attention counts like the model FLOPs: the full square even if causal. A
/// step of ring attention covers the part of the square whose keys it holds; the steps together cover all of it.
double replayed_once(const OpInstance& op) {
  switch (op.kind) {
    case OpKind::linear:
    case OpKind::expert_linear:
    case OpKind::attention_scores:
    case OpKind::attention_context: return flops_of(op);
    case OpKind::attention:
    case OpKind::ring_attention:
      return 2.0 * static_cast<double>(op.inputs[0].shape[0]) * static_cast<double>(op.attributes.sequence_length) *
             static_cast<double>(op.attributes.q_columns() + op.attributes.o_columns());
    default: return 0;
  }
}

/// FLOPs of replayed products and attention in one step of this stage's rank.
double replayed_flops(const Program& program) {
  const std::vector<int64_t> executions = block_executions(program);
  double flops = 0;
  for (size_t b = 0; b < program.blocks.size(); ++b) {
    const Block& block = program.blocks[b];
    if (executions[b] == 0) continue;
    for (const Instruction& instruction : block.instructions) {
      if (instruction.kind != InstructionKind::op || instruction.time != TimeKind::recompute) continue;
      flops += replayed_once(op_instance(block, instruction)) * static_cast<double>(executions[b]);
    }
  }
  return flops;
}

}  // namespace

Prediction memory_prediction(std::span<const Program> stages, const Target& target) {
  ensure(!stages.empty(), "a pipeline has at least one stage");
  Prediction prediction;
  const Program* largest = &stages[0];
  for (const Program& program : stages) {
    prediction.peak_bytes_by_stage.push_back(program.arena.bytes + target.framework_bytes);
    if (program.arena.bytes > largest->arena.bytes) largest = &program;
  }
  const ArenaMap& arena = largest->arena;
  MemoryPrediction& memory = prediction.memory;
  memory.parameters = arena.parameters.bytes;
  memory.gradients = arena.gradients.bytes;
  memory.optimizer = arena.master.bytes + arena.moment1.bytes + arena.moment2.bytes;
  memory.activations = kept_bytes(*largest);
  memory.scratch = arena.bytes - memory.parameters - memory.gradients - memory.optimizer - memory.activations;
  memory.framework = target.framework_bytes;
  ensure(memory.scratch >= 0, "the segments of an arena lie inside it");
  prediction.arena_bytes = arena.bytes;
  prediction.framework_bytes = target.framework_bytes;
  prediction.peak_bytes = arena.bytes + target.framework_bytes;
  return prediction;
}

void fill_rates(std::span<const Program> stages, int64_t devices, double peak_flops_per_second,
                Prediction& prediction) {
  ensure(prediction.step_seconds > 0 && devices > 0, "a step takes time on at least one device");
  const Program& first = stages[0];
  // Not the rows of all micro-batches: the last of them may hold masked sequences (ragged_batch).
  const double tokens = static_cast<double>(first.global_batch) * static_cast<double>(first.sequence_length);
  const double per_second = 1 / prediction.step_seconds;
  const double share = 1 / static_cast<double>(devices);
  prediction.tokens_per_second = tokens * per_second;
  prediction.tokens_per_second_per_device = tokens * per_second * share;
  prediction.model_flops_per_second_per_device = first.model_flops * per_second * share;
  if (peak_flops_per_second <= 0) return;
  const double ranks = static_cast<double>(first.mesh.data_ranks()) * first.mesh.tp;  // that one per stage stands for
  double replayed = 0;
  for (const Program& program : stages) replayed += replayed_flops(program) * ranks;
  prediction.mfu = prediction.model_flops_per_second_per_device / peak_flops_per_second;
  prediction.hfu = (first.model_flops + replayed) * per_second * share / peak_flops_per_second;
}

}  // namespace foresail
