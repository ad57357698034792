#include "program/chunk_lists.h"

#include <fmt/format.h>

#include <utility>

#include "program/schedule.h"
#include "program/step_blocks.h"

namespace foresail {
namespace {

constexpr Place kIn{Register::x_in, 0, MemoryKind::activations};
constexpr Place kOut{Register::x_out, 0, MemoryKind::scratch};
constexpr Place kGradient{Register::hidden_gradient, 0, MemoryKind::scratch};

size_t index_of(Register base) { return static_cast<size_t>(base); }

int32_t activations_after(int64_t virtual_stage) { return static_cast<int32_t>(2 * virtual_stage); }
int32_t gradients_after(int64_t virtual_stage) { return static_cast<int32_t>(2 * virtual_stage) + 1; }

bool sends_hidden(const ChunkShape& chunk) { return !chunk.last && !chunk.to_self; }
bool sends_gradient(const ChunkShape& chunk) { return !chunk.first && !chunk.from_self; }

bool reads_parameters(const Block& block) {
  for (const Instruction& instruction : block.instructions) {
    for (const int32_t input : instruction.inputs) {
      const Register base = block.buffers[static_cast<size_t>(input)].base;
      if (base == Register::parameter || base == Register::tied_parameter || base == Register::expert_parameter) {
        return true;
      }
    }
  }
  return false;
}

/// Of a block that calls share.
std::string key_of(const char* what, const UnitPart& part) {
  return fmt::format("{}/{}/{}/{}/{}", what, part.name(), part.begin, part.end, part.tied);
}

}  // namespace

/// Zones outlive a list: outgoing hidden states until they are received, the gradient of the hidden states until it is
/// received or until the neighbour on this rank has taken it over.
ChunkLists::ChunkLists(const StageShape& shape, const ArenaMap& arena, BlockStore& store)
    : shape_(shape), arena_(arena), store_(store), outgoing_buffers_(outgoing_buffers(shape.strategy.schedule)) {
  const auto reserve = [&](int64_t buffers) {
    const int64_t begin = zones_bytes_;
    zones_bytes_ += buffers * shape.hidden_bytes();
    return begin;
  };
  for (const ChunkShape& chunk : shape.chunks) {
    hidden_zones_.push_back(chunk.last ? -1 : reserve(chunk.to_self ? 1 : outgoing_buffers_));
  }
  gradient_zones_.assign(shape.chunks.size(), -1);
  for (size_t c = shape.chunks.size(); c-- > 0;) {
    const ChunkShape& chunk = shape.chunks[c];
    if (chunk.to_self) {
      gradient_zones_[c] = gradient_zones_[c + 1];
    } else if (!chunk.first) {
      gradient_zones_[c] = reserve(outgoing_buffers_);
    }
  }
}

// ---- Units

/// Of one layer's weights, experts last.
std::vector<ChunkLists::Held> ChunkLists::layer_units(size_t chunk, int64_t index, LayerPart part) const {
  const ChunkShape& here = shape_.chunks[chunk];
  const LayerKind& block = shape_.block_of(here.layers.first + index);
  const auto at = static_cast<size_t>(index);
  const UnitPart unit = part == LayerPart::whole      ? whole(block)
                        : part == LayerPart::products ? products(block)
                                                      : others(block);
  std::vector<Held> units{{unit, here.layer_offsets[at]}};
  // All weights of experts are those of products.
  if (part != LayerPart::others && block.experts.elements > 0)
    units.push_back({experts(block), here.expert_offsets[at]});
  return units;
}

ChunkLists::Held ChunkLists::embedding_unit(const UnitPart& part) const { return {part, shape_.embedding_offset}; }

ChunkLists::Held ChunkLists::head_unit() const { return {whole(shape_.head), shape_.head_offset}; }

/// The head's own weights, and the embedding's table where it reads that.
std::vector<ChunkLists::Held> ChunkLists::head_weights() const {
  std::vector<Held> weights{head_unit()};
  if (!shape_.tied_here) return weights;
  for (const FlatRange& range : shape_.embedding.unit.ranges) {
    if (range.shared) weights.push_back(embedding_unit({&shape_.embedding, range.begin, range.end, true}));
  }
  return weights;
}

RegisterFile ChunkLists::registers(const Held& held) const {
  return unit_registers(shape_, arena_, held.part, held.offset);
}

/// A block of a layer reaches its experts beside its other weights.
RegisterFile ChunkLists::layer_registers(size_t chunk, int64_t index) const {
  const std::vector<Held> units = layer_units(chunk, index, LayerPart::whole);
  RegisterFile base = registers(units[0]);
  if (units.size() == 1) return base;
  const RegisterFile experts = registers(units[1]);
  for (const Register of_experts : {Register::expert_parameter, Register::expert_gradient}) {
    base[index_of(of_experts)] = experts[index_of(of_experts)];
  }
  return base;
}

// ---- Calls

void ChunkLists::begin_list() {
  list_ = {};
  buckets_ = {};
}

int32_t ChunkLists::shared(const std::string& key, const std::function<int32_t()>& make) {
  const auto found = shared_.find(key);
  if (found != shared_.end()) return found->second;
  return shared_[key] = make();
}

void ChunkLists::call(int32_t block, const RegisterFile& base, std::vector<Binding> bindings,
                      std::vector<ZoneBinding> zones, bool last_only) {
  list_.add({{.block = block, .last_only = last_only, .base = base},
             store_.at(block).scratch_bytes,
             std::move(bindings),
             std::move(zones)});
}

/// A buffer for each unit's part, made ready by a call of the block for it; the bindings by which other blocks find it.
std::vector<ChunkLists::Ready> ChunkLists::prepare(const std::vector<Held>& units, const char* what, DType dtype,
                                                   Register (UnitPart::*base)() const,
                                                   bool (ChunkLists::*wanted)(const Sharing&) const,
                                                   const std::function<Block(const UnitPart&)>& make) {
  std::vector<Ready> ready;
  for (const Held& unit : units) {
    const UnitPart& part = unit.part;
    if (part.elements() == 0 || !(this->*wanted)(sharing_of(shape_, part))) continue;
    const int32_t block = shared(key_of(what, part), [&] { return store_.add(make(part)); });
    const Binding binding{(part.*base)(), list_.add_item(part.elements() * size_of(dtype)),
                          part.begin * size_of(dtype)};
    call(block, registers(unit), {binding});
    ready.push_back({unit, binding});
  }
  return ready;
}

/// ZeRO-3: makes the units' parameters whole.
std::vector<ChunkLists::Ready> ChunkLists::gather(const std::vector<Held>& units) {
  return prepare(units, "gather", shape_.precision.parameter, &UnitPart::parameter, &ChunkLists::gathers,
                 [&](const UnitPart& part) { return gather_block(shape_, part, store_.queues()); });
}

/// Zeroed transient gradients for what a block adds.
std::vector<ChunkLists::Ready> ChunkLists::zero(const std::vector<Held>& units) {
  return prepare(units, "zero", shape_.precision.gradient, &UnitPart::gradient, &ChunkLists::adds_apart,
                 [&](const UnitPart& part) { return zero_block(shape_, part); });
}

/// Transient gradients join those that persist.
void ChunkLists::accumulate(const Ready& transient) {
  const UnitPart& part = transient.unit.part;
  const int32_t block = shared(key_of("accumulate", part), [&] { return store_.add(accumulate_block(shape_, part)); });
  call(block, registers(transient.unit), {transient.binding});
}

/// The same where ZeRO shards those: summed over ranks first.
void ChunkLists::reduce(const Ready& transient) {
  const UnitPart& part = transient.unit.part;
  const int32_t block =
      shared(key_of("reduce", part), [&] { return store_.add_staged(reduce_block(shape_, part, store_.queues())); });
  call(block, registers(transient.unit), {transient.binding});
}

/// A unit whose gradients are whole: reduced now, while backward goes on, where the strategy wants that.
void ChunkLists::complete(const Held& unit) {
  const UnitPart& part = unit.part;
  const Sharing& sharing = sharing_of(shape_, part);
  if (!shape_.reduces_in_backward(sharing)) return;
  if (sharing.shards_state()) {
    const int32_t block =
        shared(key_of("reduce", part), [&] { return store_.add_staged(reduce_block(shape_, part, store_.queues())); });
    call(block, registers(unit), {}, {}, true);
    return;
  }
  Bucket& bucket = buckets_[part.of_experts ? 1 : 0];
  const int64_t begin = unit.offset, end = unit.offset + part.unit().elements;
  if (end != bucket.begin) {
    flush(bucket);
    bucket = {part, begin, end};
  }
  bucket.begin = begin;
  const int64_t bytes = (bucket.end - bucket.begin) * size_of(shape_.accumulate_dtype());
  if (bytes >= shape_.strategy.bucket_bytes) flush(bucket);
}

void ChunkLists::flush(Bucket& bucket) {
  const int64_t elements = bucket.end - bucket.begin;
  if (elements > 0) {
    const Sharing& sharing = sharing_of(shape_, bucket.part);
    const int32_t block = shared(fmt::format("bucket/{}/{}", bucket.part.of_experts, elements), [&] {
      return store_.add_staged(bucket_block(shape_, sharing, elements, store_.queues()));
    });
    call(block, unit_registers(shape_, arena_, bucket.part, bucket.begin), {}, {}, true);
  }
  bucket = {};
}

/// Parameters are gathered one block ahead of their use. Beside the compute queue, a block's gradients are reduced while
/// the next one runs: they stay alive until then. Returns the position of every step in the list.
std::vector<int> ChunkLists::run(const std::vector<Step>& steps) {
  std::vector<int> positions;
  std::vector<Ready> ready = steps.empty() ? std::vector<Ready>{} : gather(steps[0].reads);
  std::function<void()> later = [] {};
  for (size_t s = 0; s < steps.size(); ++s) {
    const Step& step = steps[s];
    const std::vector<Ready> next = s + 1 < steps.size() ? gather(steps[s + 1].reads) : std::vector<Ready>{};
    if (!step.wait_channels.empty()) wait_sends(step.wait_channels);
    const std::vector<Ready> transients = zero(step.adds);
    PlannedCall planned{{.block = step.block, .layer = step.layer, .base = step.base},
                        store_.at(step.block).scratch_bytes,
                        step.bindings,
                        step.zones};
    for (const auto& each : {ready, transients}) {
      for (const Ready& part : each) planned.bindings.push_back(part.binding);
    }
    positions.push_back(list_.add(std::move(planned)));
    later();
    const auto reduced = [this](const Ready& each) { return sharing_of(shape_, each.unit.part).shards_gradients(); };
    for (const Ready& each : transients) {
      if (!reduced(each)) accumulate(each);  // on the compute queue: nothing to wait for
    }
    later = [this, &step, transients, reduced] {
      for (const Ready& each : transients) {
        if (reduced(each)) reduce(each);
      }
      for (const Held& unit : step.completes) complete(unit);
    };
    if (!store_.queues().bulk_beside) std::exchange(later, [] {})();
    ready = next;
  }
  later();
  for (Bucket& bucket : buckets_) flush(bucket);
  return positions;
}

// ---- Between chunks

ZoneBinding ChunkLists::hidden_zone(size_t chunk) const {
  return {Register::x_out, hidden_zones_[chunk], Anchor::outgoing};
}

ChunkLists::Gradient ChunkLists::hidden_gradient(size_t chunk) {
  if (gradient_zones_[chunk] < 0) return {{{Register::hidden_gradient, list_.add_item(shape_.hidden_bytes()), 0}}, {}};
  return {{}, {{Register::hidden_gradient, gradient_zones_[chunk], Anchor::outgoing_gradient}}};
}

/// Until the next message of each channel has a buffer to leave from.
void ChunkLists::wait_sends(std::vector<int32_t> channels) {
  const std::string key = fmt::format("wait/{}", fmt::join(channels, ","));
  const auto keep = static_cast<int32_t>(outgoing_buffers_) - 1;
  call(shared(key, [&] { return store_.add(wait_block(channels, keep, store_.queues())); }));
}

void ChunkLists::receive_hidden(size_t chunk) {
  const ChunkShape& here = shape_.chunks[chunk];
  if (here.first) return;
  if (here.from_self) {
    const Place handed_over{Register::absolute, 0, MemoryKind::scratch};
    call(store_.add(copy_block(shape_, handed_over, kIn)), {}, {}, {{Register::absolute, hidden_zones_[chunk - 1]}});
    return;
  }
  const Message message{"receive_hidden", InstructionKind::receive, activations_after(here.virtual_stage - 1),
                        here.previous_stage, kIn};
  call(store_.add(message_block(shape_, message, store_.queues())));
}

void ChunkLists::send_hidden(size_t chunk) {
  const ChunkShape& here = shape_.chunks[chunk];
  if (!sends_hidden(here)) return;
  const Message message{"send_hidden", InstructionKind::send, activations_after(here.virtual_stage), here.next_stage,
                        kOut};
  call(store_.add(message_block(shape_, message, store_.queues())), {}, {}, {hidden_zone(chunk)});
}

/// Where the last layer of a chunk leaves its hidden states: for a message or for the neighbour on this rank in a zone,
/// for the head in the slot.
void ChunkLists::lead_out(size_t chunk, Step& last_layer) const {
  const ChunkShape& here = shape_.chunks[chunk];
  if (here.last) return;
  last_layer.zones.push_back(hidden_zone(chunk));
  if (sends_hidden(here)) last_layer.wait_channels = {activations_after(here.virtual_stage)};
}

/// Messages of a chunk leave from its buffers in turn; a chunk that hands over on this rank has its neighbour's gradient
/// buffer, and their entries alternate.
void ChunkLists::take_turns(std::vector<ScheduleEntry>& entries) const {
  std::vector<int64_t> forwards(shape_.chunks.size()), backwards(shape_.chunks.size());
  for (ScheduleEntry& entry : entries) {
    const auto chunk = static_cast<size_t>(entry.chunk);
    if (entry.phase == Phase::forward && sends_hidden(shape_.chunks[chunk])) {
      entry.out_offset = forwards[chunk]++ % outgoing_buffers_ * shape_.hidden_bytes();
    }
    if (entry.phase == Phase::backward && gradient_zones_[chunk] >= 0) {
      entry.gradient_offset = backwards[chunk]++ % outgoing_buffers_ * shape_.hidden_bytes();
    }
  }
}

std::vector<int32_t> ChunkLists::sent_channels(bool gradients) const {
  std::vector<int32_t> channels;
  for (const ChunkShape& chunk : shape_.chunks) {
    if (sends_hidden(chunk)) channels.push_back(activations_after(chunk.virtual_stage));
    if (gradients && sends_gradient(chunk)) channels.push_back(gradients_after(chunk.virtual_stage - 1));
  }
  return channels;
}

// ---- Lists

ChunkLists::Step ChunkLists::embedding_step(int32_t block) const {
  Step step;
  step.block = block;
  step.reads = {embedding_unit(whole(shape_.embedding))};
  step.base = registers(step.reads[0]);
  return step;
}

ChunkLists::Step ChunkLists::layer_step(size_t chunk, const ChunkLayout& layout, int64_t index, int32_t block) const {
  const auto at = static_cast<size_t>(index);
  Step step;
  step.block = block;
  step.layer = static_cast<int32_t>(shape_.chunks[chunk].layers.first + index);
  step.base = layer_registers(chunk, index);
  step.base[index_of(Register::saved)] = step.base[index_of(Register::x_in)] = layout.region_offsets[at];
  step.base[index_of(Register::x_out)] = layout.region_offsets[at] + layout.layers[at].region_bytes;
  step.base[index_of(Register::delayed)] = layout.delayed_offsets[at];
  step.base[index_of(Register::carried)] = layout.carried_offsets[at];
  if (reads_parameters(store_.at(block).block)) step.reads = layer_units(chunk, index, LayerPart::whole);
  return step;
}

CallSequence ChunkLists::forward(size_t chunk, const ChunkLayout& layout) {
  begin_list();
  receive_hidden(chunk);
  std::vector<Step> steps;
  const bool first = shape_.chunks[chunk].first;
  if (first) {
    steps.push_back(
        embedding_step(shared("embedding.forward", [&] { return compile_embedding_forward(shape_, arena_, store_); })));
  }
  for (int64_t i = 0; i < shape_.chunks[chunk].layers.count; ++i) {
    steps.push_back(layer_step(chunk, layout, i, layout.layers[static_cast<size_t>(i)].forward));
  }
  lead_out(chunk, steps.back());
  std::vector<int> calls = run(steps);
  send_hidden(chunk);
  if (first) calls.erase(calls.begin());
  fill_slot(layout, calls);
  return std::exchange(list_, {});
}

/// Forward fills the slot from the bottom up: a layer's region when it runs, its input when the one below does.
void ChunkLists::fill_slot(const ChunkLayout& layout, const std::vector<int>& layer_calls) {
  const int end = static_cast<int>(list_.calls.size()) - 1;
  list_.slot_bytes = layout.slot_bytes;
  const int64_t input = shape_.hidden_bytes();
  for (size_t i = 0; i < layer_calls.size(); ++i) {
    const int64_t begin = layout.region_offsets[i];
    list_.slot_uses.push_back({begin, input, i == 0 ? 0 : layer_calls[i - 1], end});
    list_.slot_uses.push_back({begin + input, layout.layers[i].region_bytes - input, layer_calls[i], end});
  }
  if (layout.output_offset >= 0) list_.slot_uses.push_back({layout.output_offset, input, layer_calls.back(), end});
}

/// Backward empties it from the top down.
void ChunkLists::empty_slot(const ChunkLayout& layout, const std::vector<int>& layer_calls, int head_call) {
  list_.slot_bytes = layout.slot_bytes;
  for (size_t i = 0; i < layer_calls.size(); ++i) {
    list_.slot_uses.push_back({layout.region_offsets[i], layout.layers[i].region_bytes, 0, layer_calls[i]});
  }
  if (layout.output_offset >= 0) list_.slot_uses.push_back({layout.output_offset, shape_.hidden_bytes(), 0, head_call});
}

CallSequence ChunkLists::backward(size_t chunk, const ChunkLayout& layout) {
  const ChunkShape& here = shape_.chunks[chunk];
  begin_list();
  const Gradient gradient = hidden_gradient(chunk);
  std::vector<Step> steps;
  const auto add = [&](Step step) {
    step.bindings.insert(step.bindings.end(), gradient.bindings.begin(), gradient.bindings.end());
    step.zones.insert(step.zones.end(), gradient.zones.begin(), gradient.zones.end());
    steps.push_back(std::move(step));
  };
  // What was sent from the zone must have left it: by this chunk, or by the one that hands it on.
  const ChunkShape& sender = here.from_self ? shape_.chunks[chunk - 1] : here;
  if (sends_gradient(sender) && !here.to_self) wait_sends({gradients_after(sender.virtual_stage - 1)});
  if (here.last) {
    Step step;
    step.block = shared("head", [&] { return compile_head(shape_, arena_, store_); });
    step.base = registers(head_unit());
    step.base[index_of(Register::x_out)] = layout.output_offset;
    step.reads = step.adds = head_weights();
    step.completes = {head_unit()};
    add(std::move(step));
  } else if (!here.to_self) {
    const Message message{"receive_gradient", InstructionKind::receive, gradients_after(here.virtual_stage),
                          here.next_stage, kGradient};
    call(store_.add(message_block(shape_, message, store_.queues())), {}, gradient.bindings, gradient.zones);
  }
  for (int64_t i = here.layers.count - 1; i >= 0; --i) {
    const LayerBlocks& blocks = layout.layers[static_cast<size_t>(i)];
    const bool split = blocks.weight_gradient >= 0;
    Step step = layer_step(chunk, layout, i, blocks.backward);
    step.adds = layer_units(chunk, i, split ? LayerPart::others : LayerPart::whole);
    if (!split) step.completes = layer_units(chunk, i, LayerPart::whole);
    add(std::move(step));
  }
  if (here.first) {
    Step step;
    step.block = shared("embedding.backward", [&] { return compile_embedding_backward(shape_, arena_, store_); });
    const Held unit = embedding_unit(whole(shape_.embedding));
    step.base = registers(unit);
    if (reads_parameters(store_.at(step.block).block)) step.reads = {unit};
    step.adds = step.completes = {unit};
    add(std::move(step));
  }
  std::vector<int> calls = run(steps);
  if (sends_gradient(here)) {
    const Message message{"send_gradient", InstructionKind::send, gradients_after(here.virtual_stage - 1),
                          here.previous_stage, kGradient};
    call(store_.add(message_block(shape_, message, store_.queues())), {}, gradient.bindings, gradient.zones);
  }
  const int head_call = calls.front();
  if (here.last) calls.erase(calls.begin());
  if (here.first) calls.pop_back();
  empty_slot(layout, {calls.rbegin(), calls.rend()}, head_call);
  return std::exchange(list_, {});
}

CallSequence ChunkLists::weight_gradient(size_t chunk, const ChunkLayout& layout) {
  begin_list();
  std::vector<Step> steps;
  for (int64_t i = shape_.chunks[chunk].layers.count - 1; i >= 0; --i) {
    Step step = layer_step(chunk, layout, i, layout.layers[static_cast<size_t>(i)].weight_gradient);
    step.adds = layer_units(chunk, i, LayerPart::products);
    step.completes = layer_units(chunk, i, LayerPart::whole);
    steps.push_back(step);
  }
  run(steps);
  return std::exchange(list_, {});
}

CallSequence ChunkLists::forward_only(size_t chunk, const ForwardBlocks& blocks) {
  const ChunkShape& here = shape_.chunks[chunk];
  begin_list();
  receive_hidden(chunk);
  std::vector<Step> steps;
  if (here.first) steps.push_back(embedding_step(blocks.embedding));
  const auto turn = [&](int64_t layer) { return layer % 2 * shape_.hidden_bytes(); };
  for (int64_t i = 0; i < here.layers.count; ++i) {
    Step step;
    step.block = blocks.layers.at(&shape_.block_of(here.layers.first + i));
    step.layer = static_cast<int32_t>(here.layers.first + i);
    step.reads = layer_units(chunk, i, LayerPart::whole);
    step.base = layer_registers(chunk, i);
    step.base[index_of(Register::x_in)] = turn(i);
    step.base[index_of(Register::x_out)] = turn(i + 1);
    steps.push_back(step);
  }
  lead_out(chunk, steps.back());
  if (here.last) {
    Step step;
    step.block = blocks.head;
    step.reads = head_weights();
    step.base = registers(head_unit());
    step.base[index_of(Register::x_out)] = turn(here.layers.count);
    steps.push_back(step);
  }
  run(steps);
  send_hidden(chunk);
  return std::exchange(list_, {});
}

}  // namespace foresail
