#include "tests/executor/tiny_program.h"

#include "ops/step_inputs.h"

namespace foresail::testing {
namespace {

/// Hands out 64-byte aligned ranges one after the other.
struct Allocator {
  int64_t end = 0;
  Segment take(int64_t bytes) {
    const Segment segment{end, bytes};
    end += (bytes + 63) / 64 * 64;
    return segment;
  }
};

int32_t add_buffer(Block& block, const char* name, Register base, int64_t offset, DType dtype,
                   std::vector<int64_t> shape) {
  block.buffers.push_back({name, base, offset, {dtype, std::move(shape)}, MemoryKind::scratch});
  return static_cast<int32_t>(block.buffers.size()) - 1;
}

void add_op(Block& block, OpKind op, std::vector<int32_t> inputs, std::vector<int32_t> outputs,
            OpAttributes attributes = {}) {
  Instruction instruction;
  instruction.op = op;
  instruction.attributes = attributes;
  instruction.inputs = std::move(inputs);
  instruction.outputs = std::move(outputs);
  block.instructions.push_back(instruction);
}

void lay_out(TinyProgram& tiny, DType dtype) {
  const TinySizes& s = tiny.sizes;
  ArenaMap& map = tiny.program.arena;
  const int64_t element = size_of(dtype);
  const int64_t weight_bytes = s.vocabulary * s.hidden * element;
  Allocator allocator;
  map.parameters = allocator.take(2 * ((weight_bytes + 63) / 64 * 64));
  map.gradients = allocator.take(weight_bytes);
  map.moment1 = allocator.take(weight_bytes);
  map.moment2 = allocator.take(weight_bytes);
  map.step_inputs = allocator.take(static_cast<int64_t>(sizeof(StepInputs)));
  map.metrics = allocator.take(kStepMetrics * 8);
  map.persistent_bytes = allocator.end;
  tiny.program.data_stride_bytes = 2 * s.rows * 4;
  map.data = allocator.take(s.micro_batches * tiny.program.data_stride_bytes);
  map.scratch = allocator.take(0);
  const Segment hidden = allocator.take(s.rows * s.hidden * element);
  const Segment logits = allocator.take(s.rows * s.vocabulary * element);
  map.scratch.bytes = allocator.end - hidden.offset;
  map.bytes = allocator.end;
  tiny.layout = {map.parameters.offset, map.parameters.offset + (weight_bytes + 63) / 64 * 64,
                 map.gradients.offset,  map.moment1.offset,
                 map.moment2.offset,    logits.offset};
}

Block forward_backward(const TinyProgram& tiny, DType dtype) {
  const TinySizes& s = tiny.sizes;
  const TinyLayout& at = tiny.layout;
  Block block{.name = "tiny.forward", .buffers = {}, .instructions = {}};
  const auto tokens = add_buffer(block, "tokens", Register::data, 0, DType::i32, {s.rows});
  const auto targets = add_buffer(block, "targets", Register::data, s.rows * 4, DType::i32, {s.rows});
  const auto table = add_buffer(block, "table", Register::absolute, at.table, dtype, {s.vocabulary, s.hidden});
  const auto weight = add_buffer(block, "weight", Register::absolute, at.weight, dtype, {s.vocabulary, s.hidden});
  const auto gradient = add_buffer(block, "dweight", Register::absolute, at.gradient, dtype, {s.vocabulary, s.hidden});
  const auto hidden =
      add_buffer(block, "x", Register::absolute, tiny.program.arena.scratch.offset, dtype, {s.rows, s.hidden});
  const auto logits = add_buffer(block, "logits", Register::absolute, at.logits, dtype, {s.rows, s.vocabulary});
  const auto loss = add_buffer(block, "loss", Register::absolute, tiny.program.arena.metrics.offset, DType::f64, {1});
  OpAttributes attributes;
  attributes.sequence_length = s.rows;
  attributes.vocabulary = s.vocabulary;
  add_op(block, OpKind::embedding, {tokens, table}, {hidden}, attributes);
  add_op(block, OpKind::linear, {hidden, weight}, {logits});
  add_op(block, OpKind::cross_entropy, {logits, targets}, {logits, loss}, attributes);
  add_op(block, OpKind::linear_backward_weight, {logits, hidden}, {gradient});
  return block;
}

Block zero_block(const TinyProgram& tiny, DType dtype) {
  Block block{.name = "tiny.begin", .buffers = {}, .instructions = {}};
  const int64_t elements = tiny.sizes.vocabulary * tiny.sizes.hidden;
  const auto gradient = add_buffer(block, "dweight", Register::absolute, tiny.layout.gradient, dtype, {elements});
  const auto metrics =
      add_buffer(block, "metrics", Register::absolute, tiny.program.arena.metrics.offset, DType::f64, {kStepMetrics});
  add_op(block, OpKind::fill_zero, {}, {gradient});
  add_op(block, OpKind::fill_zero, {}, {metrics});
  return block;
}

Block update_block(const TinyProgram& tiny, DType dtype) {
  Block block{.name = "tiny.update", .buffers = {}, .instructions = {}};
  const int64_t elements = tiny.sizes.vocabulary * tiny.sizes.hidden;
  const int64_t metrics_at = tiny.program.arena.metrics.offset;
  const auto gradient = add_buffer(block, "dweight", Register::absolute, tiny.layout.gradient, dtype, {elements});
  const auto norm = add_buffer(block, "norm", Register::absolute, metrics_at + 8, DType::f64, {1});
  const auto metrics = add_buffer(block, "metrics", Register::absolute, metrics_at, DType::f64, {kStepMetrics});
  const auto weight = add_buffer(block, "weight", Register::absolute, tiny.layout.weight, dtype, {elements});
  const auto moment1 = add_buffer(block, "moment1", Register::absolute, tiny.layout.moment1, dtype, {elements});
  const auto moment2 = add_buffer(block, "moment2", Register::absolute, tiny.layout.moment2, dtype, {elements});
  add_op(block, OpKind::squared_norm, {gradient}, {norm});
  add_op(block, OpKind::clip_scale, {metrics}, {metrics});
  add_op(block, OpKind::adamw, {gradient, metrics}, {weight, moment1, moment2});
  return block;
}

}  // namespace

TinyProgram tiny_program(DType dtype, const TinySizes& sizes) {
  TinyProgram tiny;
  tiny.sizes = sizes;
  Program& program = tiny.program;
  program.name = "tiny";
  program.micro_batches = sizes.micro_batches;
  program.rows_per_micro_batch = sizes.rows;
  program.sequence_length = sizes.rows;
  program.precision = dtype == DType::f64 ? kFloat64Precision : kFloat32Precision;
  program.chunks = {{.virtual_stage = 0, .first_layer = 0, .layers = 0, .slots = 1}};
  program.reads_tokens = program.reads_targets = true;
  lay_out(tiny, dtype);
  program.blocks = {zero_block(tiny, dtype), forward_backward(tiny, dtype), update_block(tiny, dtype)};
  const auto call = [&](Phase phase, int32_t block) {
    program.calls[static_cast<size_t>(phase)] = {{{.block = block, .layer = -1, .base = {}}}};
  };
  call(Phase::begin_step, 0);
  call(Phase::forward, 1);
  call(Phase::update, 2);
  program.schedule.push_back({Phase::begin_step, 0, -1, 0});
  for (int32_t i = 0; i < sizes.micro_batches; ++i) program.schedule.push_back({Phase::forward, 0, i, 0});
  program.schedule.push_back({Phase::update, 0, -1, 0});
  return tiny;
}

void give_workspace(TinyProgram& tiny, Device& device) {
  ArenaMap& map = tiny.program.arena;
  for (Block& block : tiny.program.blocks) {
    for (Instruction& instruction : block.instructions) {
      const int64_t bytes = (device.workspace_bytes(op_instance(block, instruction)) + 63) / 64 * 64;
      if (bytes == 0) continue;
      instruction.workspace = add_buffer(block, "workspace", Register::absolute, map.bytes, DType::f32, {bytes / 4});
      map.bytes += bytes;
    }
  }
}

}  // namespace foresail::testing
