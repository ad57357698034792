#include "tests/executor/overlap_program.h"

#include "core/error.h"
#include "runtime/executor/arena.h"

namespace foresail::testing {
namespace {

/// Appends buffers and instructions to one block.
class Writer {
 public:
  Writer(Block& block, int64_t elements) : block_(block), elements_(elements) {}

  int32_t buffer(const char* name, Register base, int64_t offset, int64_t elements, int64_t shard_stride = 0) {
    block_.buffers.push_back({name, base, offset, {DType::f64, {elements}}, MemoryKind::scratch, shard_stride});
    return static_cast<int32_t>(block_.buffers.size()) - 1;
  }
  int32_t buffer(const char* name, Register base, int64_t index) {
    return buffer(name, base, index * elements_ * 8, elements_);
  }
  Instruction& add(InstructionKind kind, Queue queue, std::vector<int32_t> inputs, std::vector<int32_t> outputs) {
    Instruction& instruction = block_.instructions.emplace_back();
    instruction.kind = kind;
    instruction.op = OpKind::add;
    instruction.queue = queue;
    instruction.inputs = std::move(inputs);
    instruction.outputs = std::move(outputs);
    return instruction;
  }
  void sum(Queue queue, int32_t a, int32_t b, int32_t result) { add(InstructionKind::op, queue, {a, b}, {result}); }
  void copy(Queue queue, int32_t from, int32_t to) { add(InstructionKind::op, queue, {from}, {to}).op = OpKind::copy; }

 private:
  Block& block_;
  int64_t elements_;
};

/// weight (register parameter) and gradient (register gradient) of the layer; scratch shared by all layers.
Block layer_block(int64_t elements) {
  Block block{.name = "layer", .buffers = {}, .instructions = {}};
  Writer writer(block, elements);
  const auto weight = writer.buffer("weight", Register::parameter, 0);
  const auto gradient = writer.buffer("gradient", Register::gradient, 0);
  const auto hidden = writer.buffer("hidden", Register::scratch, 0);
  const auto shifted = writer.buffer("shifted", Register::scratch, 1);
  const auto handed = writer.buffer("handed", Register::scratch, 2);
  const auto packed = writer.buffer("packed", Register::scratch, 3);
  const auto exchanged = writer.buffer("exchanged", Register::scratch, 4);
  writer.sum(Queue::compute, weight, shifted, hidden);
  writer.add(InstructionKind::ring_shift, Queue::inline_comm, {hidden}, {shifted}).group = GroupKind::context;
  writer.add(InstructionKind::send, Queue::pipeline, {hidden}, {});
  writer.add(InstructionKind::receive, Queue::pipeline, {}, {handed});
  writer.copy(Queue::compute, weight, packed);
  writer.add(InstructionKind::all_to_all, Queue::inline_comm, {packed}, {exchanged}).group = GroupKind::context;
  writer.sum(Queue::compute, handed, shifted, hidden);  // overwrites what the send may still read
  writer.add(InstructionKind::wait_send, Queue::pipeline, {}, {});
  writer.sum(Queue::compute, gradient, exchanged, gradient);
  writer.add(InstructionKind::all_reduce, Queue::bulk_comm, {gradient}, {gradient}).group = GroupKind::replica;
  writer.copy(Queue::bulk_comm, weight, shifted);  // an operator beside the compute queue
  return block;
}

/// Reduce-scatters the gradient into this rank's share, adds that to its share of the weight and gathers the weight.
Block update_block(const Mesh& mesh, int64_t elements) {
  Block block{.name = "update", .buffers = {}, .instructions = {}};
  Writer writer(block, elements);
  const int64_t share = elements / mesh.shard;
  const auto gradient = writer.buffer("gradient", Register::gradient, 0);
  const auto weight = writer.buffer("weight", Register::parameter, 0);
  const auto gradient_share = writer.buffer("gradient share", Register::gradient, 0, share, share * 8);
  const auto weight_share = writer.buffer("weight share", Register::parameter, 0, share, share * 8);
  writer.add(InstructionKind::reduce_scatter, Queue::bulk_comm, {gradient}, {gradient_share}).group = GroupKind::shard;
  writer.copy(Queue::compute, gradient_share, weight_share);
  writer.add(InstructionKind::all_gather, Queue::bulk_comm, {weight_share}, {weight}).group = GroupKind::shard;
  return block;
}

void fill(std::byte* arena, int64_t bytes, int rank) {
  auto* values = reinterpret_cast<double*>(arena);
  for (int64_t i = 0; i < bytes / 8; ++i) values[i] = 1.0 / static_cast<double>(3 + i * 7 + rank * 13);
}

class HookedKernel final : public Kernel {
 public:
  HookedKernel(HookedDevice& device, const OpInstance& op, int number)
      : device_(device), elements_(op.outputs.at(0).elements()), inputs_(op.inputs.size()), number_(number) {}
  void run(const KernelArguments& arguments) override {
    if (device_.before) device_.before(number_);
    auto* result = static_cast<double*>(arguments.outputs[0]);
    const auto* a = static_cast<const double*>(arguments.inputs[0]);
    const auto* b = static_cast<const double*>(arguments.inputs[inputs_ - 1]);
    for (int64_t i = 0; i < elements_; ++i) result[i] = inputs_ == 2 ? a[i] + b[i] : a[i];
    if (device_.after) device_.after(number_);
  }

 private:
  HookedDevice& device_;
  int64_t elements_;
  size_t inputs_;
  int number_;
};

}  // namespace

std::unique_ptr<Kernel> HookedDevice::bind(const OpInstance& op) {
  ensure(op.kind == OpKind::add || op.kind == OpKind::copy, "the overlap Program adds and copies");
  return std::make_unique<HookedKernel>(*this, op, bound_++);
}

Program overlap_program(const Mesh& mesh, const OverlapSizes& sizes) {
  Program program;
  program.name = "overlap";
  program.mesh = mesh;
  program.micro_batches = sizes.micro_batches;
  program.rows_per_micro_batch = program.sequence_length = 1;
  program.precision = kFloat64Precision;
  program.chunks = {{.layers = sizes.layers, .slots = 1}};
  program.blocks = {layer_block(sizes.elements), update_block(mesh, sizes.elements)};
  const int64_t bytes = sizes.elements * 8;
  const int64_t gradients = sizes.layers * bytes, scratch = 2 * gradients;
  auto& forward = program.calls[static_cast<size_t>(Phase::forward)];
  auto& update = program.calls[static_cast<size_t>(Phase::update)];
  forward.emplace_back();
  update.emplace_back();
  for (int32_t layer = 0; layer < sizes.layers; ++layer) {
    RegisterFile base{};
    base[static_cast<size_t>(Register::parameter)] = layer * bytes;
    base[static_cast<size_t>(Register::gradient)] = gradients + layer * bytes;
    base[static_cast<size_t>(Register::scratch)] = scratch;
    forward[0].push_back({.block = 0, .layer = layer, .base = base});
    update[0].push_back({.block = 1, .layer = layer, .base = base});
  }
  program.arena.step_inputs = {scratch + 5 * bytes, static_cast<int64_t>(sizeof(StepInputs))};
  program.arena.bytes = program.arena.step_inputs.offset + program.arena.step_inputs.bytes;
  for (int32_t i = 0; i < sizes.micro_batches; ++i) {
    program.schedule.push_back({.phase = Phase::forward, .micro_batch = i});
  }
  program.schedule.push_back({.phase = Phase::update});
  return program;
}

std::vector<std::byte> run_overlap(const Program& program, Communicator& communicator, Device& device, int steps,
                                   const ExecutorOptions& options, QueueMode* queue_mode) {
  communicator.create_groups(mesh_groups(program.mesh).members);
  Arena arena(program.arena.bytes);
  Executor executor(program, device, &communicator, arena, communicator.rank(), options);
  if (queue_mode != nullptr) *queue_mode = executor.queue_mode();
  fill(arena.data(), program.arena.step_inputs.offset, communicator.rank());
  for (int step = 0; step < steps; ++step) executor.step();
  return {arena.data(), arena.data() + program.arena.step_inputs.offset};
}

}  // namespace foresail::testing
