// A compiled training step of one rank class: blocks of instructions that address the arena by (register + offset), and
// a schedule that gives every execution of a block its register values. Plain data: dumped, compared, hashed, simulated
// and executed as it is. Nothing in it depends on the rank within its class.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "ops/graph.h"
#include "ops/metrics_record.h"
#include "ops/op.h"
#include "spec/mesh.h"

namespace foresail {

/// Base addresses that an execution of a block supplies. Address = arena + base[register] + offset, and for buffers with a
/// shard stride + shard rank * stride.
///
/// A layer with experts is two units: what the data ranks share, and its experts, which the ranks of another mesh share.
enum class Register : uint8_t {
  absolute,          ///< base 0: step inputs, metrics, constants
  parameter,         ///< this unit's weights as compute reads them: its part of the parameters, or gathered (ZeRO-3)
  gradient,          ///< what compute adds to: part of the gradients, or transient (StageShape::transient_gradients)
  expert_parameter,  ///< the same of the layer's experts
  expert_gradient,
  parameter_shard,  ///< what the optimizer updates: without ZeRO the same as `parameter`
  gradient_shard,   ///< the persistent gradients, which are reduced and read by norm and optimizer
  tied_parameter,   ///< the embedding unit's weights, for a tied head on the same rank
  tied_gradient,    ///< and what compute adds to for them
  master,
  moment1,
  moment2,
  saved,            ///< this layer's region of the micro-batch's slot: its input hidden states, then kept activations
  delayed,          ///< this layer's region of what is kept from forward to the weight gradient
  carried,          ///< this layer's region of what is kept from backward to the weight gradient
  x_in,             ///< hidden states entering the layer (in the slot)
  x_out,            ///< hidden states leaving it (in the slot)
  hidden_gradient,  ///< gradient of the hidden states: enters as the output's, leaves as the input's
  data,             ///< tokens and targets of the micro-batch
  scratch,          ///< temporaries of this execution
  count_
};
inline constexpr int kRegisterCount = static_cast<int>(Register::count_);
using RegisterFile = std::array<int64_t, kRegisterCount>;

/// What a buffer is for; the keys of `memory` in the JSON.
enum class MemoryKind : uint8_t { parameters, gradients, optimizer, activations, scratch };

/// The ranks that hold the shares of a buffer.
enum class ShareOf : uint8_t { data, expert, tensor };  ///< shard groups, expert_shard groups, tensor groups

struct Buffer {
  std::string name;
  Register base = Register::absolute;
  int64_t offset = 0;
  TensorType type;
  MemoryKind memory = MemoryKind::scratch;
  int64_t shard_stride = 0;  ///< bytes between the shards of neighbouring shard ranks; 0: the same address on all
  ShareOf share_of = ShareOf::data;  ///< which ranks
};

enum class InstructionKind : uint8_t {
  op,
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,  ///< part i of the input goes to group rank i, part j of the output comes from group rank j
  ring_shift,  ///< the input goes to the next group rank, the output comes from the previous one
  send,
  receive,
  wait_send,
};
/// Between ranks of a group, as opposed to an operator or a message between stages.
bool is_collective(InstructionKind kind);

enum class Queue : uint8_t { compute, inline_comm, bulk_comm, pipeline, host_copy };

/// Why the time of an instruction is spent; the keys of `time` in the JSON.
enum class TimeKind : uint8_t {
  compute,
  recompute,
  tensor_comm,
  context_comm,
  expert_comm,
  data_comm,
  pipeline_comm,
  optimizer,
};

struct Instruction {
  InstructionKind kind = InstructionKind::op;
  OpKind op{};
  OpAttributes attributes;
  /// Buffers of the block. all_reduce: inputs[0] is outputs[0]. all_gather: inputs[0] into outputs[0], in group order; the
  /// input may be this rank's part of the output. reduce_scatter: this rank's part of the sum of inputs[0] into outputs[0],
  /// which may be that part of the input. all_to_all and ring_shift: equal sizes, disjoint. send: inputs[0]. receive:
  /// outputs[0]. wait_send: none; it completes the outstanding sends of its channel, oldest first, but for `keep`.
  std::vector<int32_t> inputs, outputs;
  int32_t workspace = -1;  ///< buffer, or -1
  Queue queue = Queue::compute;
  TimeKind time = TimeKind::compute;
  GroupKind group = GroupKind::world;  ///< of a collective
  int32_t peer_stage = 0;              ///< of send and receive: the other pipeline stage
  /// Part of the message tag: 2 * (virtual stage before the boundary) + (0 activations, 1 gradients).
  int32_t channel = 0;
  int32_t keep = 0;  ///< of wait_send: sends that may stay outstanding, because the next one leaves from another buffer
};

/// All instructions of one kind of layer in one phase. What an instruction must wait for on other queues follows from the
/// addresses that both touch (program/dependencies.h).
struct Block {
  std::string name;  ///< "block.backward"
  std::vector<Buffer> buffers;
  std::vector<Instruction> instructions;
};

enum class Phase : uint8_t {
  startup,
  begin_step,
  forward,
  backward,
  weight_gradient,  ///< the second half of a split backward (zero-bubble schedules)
  reduce_gradients,
  grad_norm,
  update,
};
inline constexpr int kPhaseCount = 8;
std::string_view name_of(Phase phase);

/// What an execution adds to a register of its call.
enum class Anchor : uint8_t {
  none,               ///< the register is final
  slot,               ///< where the micro-batch's slot begins
  delayed_slot,       ///< where its delayed slot begins
  carried_slot,       ///< where its carried slot begins
  data,               ///< where its tokens and targets begin
  scratch,            ///< where the temporaries of this execution begin
  outgoing,           ///< the buffer whose turn it is to send hidden states
  outgoing_gradient,  ///< the one for their gradients
};
using AnchorFile = std::array<Anchor, kRegisterCount>;

constexpr AnchorFile usual_anchors() {
  AnchorFile anchors{};
  for (const Register base : {Register::saved, Register::x_in, Register::x_out}) {
    anchors[static_cast<size_t>(base)] = Anchor::slot;
  }
  anchors[static_cast<size_t>(Register::delayed)] = Anchor::delayed_slot;
  anchors[static_cast<size_t>(Register::carried)] = Anchor::carried_slot;
  anchors[static_cast<size_t>(Register::data)] = Anchor::data;
  return anchors;
}

/// One execution of a block in a phase.
struct Call {
  int32_t block = 0;
  int32_t layer = -1;      ///< global layer number; -1 for embedding, head and bookkeeping
  bool last_only = false;  ///< only for the chunk's last micro-batch of the step (overlapped gradient reduction)
  RegisterFile base{};
  AnchorFile anchors = usual_anchors();
};

/// Order on this stage: execute all calls of (phase, chunk) for a micro-batch in a slot.
struct ScheduleEntry {
  Phase phase{};
  int32_t chunk = 0;
  int32_t micro_batch = -1;
  int32_t slot = 0;          ///< of the chunk: from forward to the end of backward or weight_gradient
  int32_t carried_slot = 0;  ///< of the chunk: from backward to weight_gradient
  bool last = false;         ///< the last execution of (phase, chunk) in the step
  /// Where the slot lies, its delayed part (which the weight gradient still needs) and the carried slot, and the temporaries
  /// of this execution: bytes from ArenaMap::slots.
  int64_t slot_offset = 0, delayed_offset = 0, carried_offset = 0, scratch_offset = 0;
  /// Which of the outgoing buffers this execution uses: bytes from the first.
  int64_t out_offset = 0, gradient_offset = 0;
};

/// The layers of one virtual stage on this rank and the slots of their micro-batches in flight.
struct Chunk {
  int32_t virtual_stage = 0;
  int32_t first_layer = 0, layers = 0;
  int64_t slot_bytes = 0;     ///< from forward to the end of backward
  int32_t slots = 0;          ///< micro-batches in flight, those that wait for their weight gradient included
  int64_t delayed_bytes = 0;  ///< of a slot's delayed part: from forward to the end of weight_gradient
  int64_t carried_bytes = 0;  ///< of a carried slot: from backward to the end of weight_gradient
  int32_t carried_slots = 0;  ///< micro-batches between backward and weight gradient
};

/// Which rectangle of which logical tensor this rank holds, and where. Elements of a row are contiguous; rows follow each
/// other at `row_stride`.
struct ParameterSlice {
  std::string tensor;          ///< Hugging Face name with the layer number
  std::vector<int64_t> shape;  ///< global: [rows, columns] or [n]
  int64_t row_begin = 0, row_end = 0, column_begin = 0, column_end = 0;
  int64_t element_offset = 0;  ///< of (row_begin, column_begin) in the segment
  int64_t row_stride = 0;      ///< elements from row to row: more than the columns where padding follows them
  Init init;
  bool decay = true;
  bool transposed_in_file = false;
  bool of_experts = false;     ///< the ranks that hold a copy are those of the expert mesh
  bool replicated = false;     ///< a lower tp rank holds the same rectangle
  bool second_holder = false;  ///< of a tied weight: not stored, not counted again

  int64_t elements() const { return (row_end - row_begin) * (column_end - column_begin); }
};

/// Byte ranges of the arena.
struct Segment {
  int64_t offset = 0, bytes = 0;
};

struct ArenaMap {
  Segment parameters, gradients, master, moment1, moment2;  ///< persistent, parameter-shaped (whole or this shard)
  Segment step_inputs;                                      ///< one StepInputs
  Segment metrics;                                          ///< f64 by StepMetric
  Segment constants;
  Segment data;  ///< per micro-batch: tokens i32[T], then targets i32[T]
  /// Kept activations of all chunks, what they carry from backward to weight gradient, and the temporaries of whatever
  /// runs: they share one range, placed in the order of time.
  Segment slots;
  Segment scratch;               ///< outgoing messages; temporaries between steps reach from the slots into it
  int64_t persistent_bytes = 0;  ///< end of what survives a step; equal in all Programs of a set
  int64_t bytes = 0;
};

struct Program {
  std::string name;  ///< "train", "evaluate", "logits"
  Mesh mesh;
  int32_t stage = 0;
  int32_t zero_stage = 0;
  int64_t micro_batches = 1;         ///< per rank and step
  int64_t global_batch = 0;          ///< sequences of one step; micro-batches beyond it are masked (ragged)
  int64_t rows_per_micro_batch = 0;  ///< on this rank
  int64_t sequence_length = 0;       ///< whole sequences; a context-parallel rank holds 1 / cp of each
  Precision precision;
  DType accumulate_dtype = DType::f32;  ///< of the persistent gradients
  int64_t parameter_elements = 0;       ///< of the whole stage, padding included; a shard holds 1 / mesh.shard of it
  int64_t expert_elements = 0;  ///< of its experts, which follow in every segment; a shard holds 1 / mesh.expert_shard
  int64_t frozen_elements = 0, frozen_expert_elements = 0;  ///< of these: no optimizer updates them
  ArenaMap arena;
  int64_t data_stride_bytes = 0;
  int64_t alignment = 64;
  std::vector<Chunk> chunks;
  std::vector<Block> blocks;
  /// Calls of each phase and chunk, in execution order (backward starts with the head); phases that belong to no chunk
  /// have one list.
  std::array<std::vector<std::vector<Call>>, kPhaseCount> calls;
  std::vector<ScheduleEntry> schedule;
  bool reads_tokens = false, reads_targets = false;
  double model_flops = 0;  ///< training_flops_per_token x tokens of the global batch (whole mesh)
};

/// The calls that `entry` executes (some only for the last micro-batch: `skips`).
const std::vector<Call>& calls_of(const Program& program, const ScheduleEntry& entry);
inline bool skips(const ScheduleEntry& entry, const Call& call) { return call.last_only && !entry.last; }
/// Where a number of the metrics record lies in the arena.
inline int64_t place_of(const ArenaMap& arena, StepMetric metric) {
  return arena.metrics.offset + index_of(metric) * size_of(DType::f64);
}
/// Ranks whose shards lie `shard_stride` apart.
inline int64_t share_ranks(const Mesh& mesh, const Buffer& buffer) {
  return buffer.share_of == ShareOf::tensor   ? mesh.tp
         : buffer.share_of == ShareOf::expert ? mesh.expert_shard
                                              : mesh.shard;
}
/// Sequences that this rank's micro-batch holds (their context-parallel share).
int64_t sequences_per_micro_batch(const Program& program);

/// What an instruction of this Program computes, in the words of the op table.
OpInstance op_instance(const Block& block, const Instruction& instruction);
/// Bytes moved by a collective or message: its operand; for all_gather the gathered output, for reduce_scatter the input.
int64_t communication_bytes(const Block& block, const Instruction& instruction);

/// Registers of a call executed for `entry`.
RegisterFile registers_for(const Program& program, const Call& call, const ScheduleEntry& entry);

/// Message tag of send and receive: unique per (channel, micro-batch) of a Program.
int32_t message_tag(const Program& program, int32_t channel, int32_t micro_batch);
/// Channels between virtual stages: two per boundary.
int32_t channel_count(const Program& program);

/// JSON (schema foresail.program/1): lossless.
std::string dump_program(const Program& program);
/// Throws bad_input with the field that is wrong.
Program read_program(const std::string& text, const std::string& source);
/// Digest of the dump.
std::string program_digest(const Program& program);

}  // namespace foresail
