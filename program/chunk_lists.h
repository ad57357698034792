// Puts together what a stage executes for one micro-batch of one chunk: the lists of calls of forward, backward and weight
// gradient, with parameters gathered and gradients reduced where ZeRO shards them.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "program/block_store.h"
#include "program/call_layout.h"
#include "program/layer_blocks.h"
#include "program/unit_blocks.h"

namespace foresail {

/// Where the layers of a chunk keep things in its slots.
struct ChunkLayout {
  std::vector<LayerBlocks> layers;
  std::vector<int64_t> region_offsets, delayed_offsets, carried_offsets;  ///< by layer
  int64_t output_offset = -1;  ///< in the slot, of the hidden states that the head reads; -1: no head
  int64_t slot_bytes = 0, delayed_bytes = 0, carried_bytes = 0;
};

/// The blocks that a forward pass without backward runs; -1: none.
struct ForwardBlocks {
  int32_t embedding = -1, head = -1;
  std::map<const LayerKind*, int32_t> layers;
};

class ChunkLists {
 public:
  ChunkLists(const StageShape& shape, const ArenaMap& arena, BlockStore& store);

  CallSequence forward(size_t chunk, const ChunkLayout& layout);
  CallSequence backward(size_t chunk, const ChunkLayout& layout);
  CallSequence weight_gradient(size_t chunk, const ChunkLayout& layout);
  /// Forward and, on the last chunk, the head: two buffers of hidden states take turns.
  CallSequence forward_only(size_t chunk, const ForwardBlocks& blocks);

  /// Scratch that outlives lists: what is sent, or handed to another list.
  int64_t zones_bytes() const { return zones_bytes_; }

  /// Which of the outgoing buffers each execution uses.
  void take_turns(std::vector<ScheduleEntry>& entries) const;

  /// Channels on which this stage sends hidden states, and with `gradients` their gradients.
  std::vector<int32_t> sent_channels(bool gradients) const;

 private:
  /// A unit's weights: which, and where they begin in the whole stage (elements).
  struct Held {
    UnitPart part;
    int64_t offset = 0;
  };

  /// One block of a list, with the weights that it reads and the gradients that it adds to.
  struct Step {
    int32_t block = -1;
    int32_t layer = -1;
    RegisterFile base{};
    std::vector<Held> reads, adds;
    std::vector<Held> completes;  ///< units whose gradients are whole after it, on the last micro-batch
    std::vector<Binding> bindings;
    std::vector<ZoneBinding> zones;
    std::vector<int32_t> wait_channels;  ///< sends that must be through before it
  };
  /// Where the gradient of the hidden states lies: in a zone if it outlives the list, else in an item of the list.
  struct Gradient {
    std::vector<Binding> bindings;
    std::vector<ZoneBinding> zones;
  };

  /// Which of a layer's weights: a split backward delays the gradients of products.
  enum class LayerPart : uint8_t { whole, products, others };
  /// A unit's weights or gradients in a buffer of the list.
  struct Ready {
    Held unit;
    Binding binding;
  };
  /// Neighbouring gradients that wait for their reduction (elements of the stage, or of its experts).
  struct Bucket {
    UnitPart part;
    int64_t begin = -1, end = -1;  ///< no unit ends at -1
  };

  std::vector<Held> layer_units(size_t chunk, int64_t index, LayerPart part) const;
  RegisterFile layer_registers(size_t chunk, int64_t index) const;
  bool gathers(const Sharing& sharing) const { return sharing.shards_parameters(); }
  bool adds_apart(const Sharing& sharing) const { return shape_.transient_gradients(sharing); }
  Held embedding_unit(const UnitPart& part) const;
  Held head_unit() const;
  std::vector<Held> head_weights() const;

  void begin_list();
  RegisterFile registers(const Held& held) const;
  /// The block that was made for `key`, or makes it.
  int32_t shared(const std::string& key, const std::function<int32_t()>& make);
  void call(int32_t block, const RegisterFile& base = {}, std::vector<Binding> bindings = {},
            std::vector<ZoneBinding> zones = {}, bool last_only = false);

  std::vector<Ready> prepare(const std::vector<Held>& units, const char* what, DType dtype,
                             Register (UnitPart::*base)() const, bool (ChunkLists::*wanted)(const Sharing&) const,
                             const std::function<Block(const UnitPart&)>& make);
  std::vector<Ready> gather(const std::vector<Held>& units);
  std::vector<Ready> zero(const std::vector<Held>& units);
  void accumulate(const Ready& transient);
  void reduce(const Ready& transient);
  void complete(const Held& unit);
  void flush(Bucket& bucket);
  std::vector<int> run(const std::vector<Step>& steps);

  ZoneBinding hidden_zone(size_t chunk) const;
  Gradient hidden_gradient(size_t chunk);
  void wait_sends(std::vector<int32_t> channels);
  void receive_hidden(size_t chunk);
  void send_hidden(size_t chunk);
  void lead_out(size_t chunk, Step& last_layer) const;
  void fill_slot(const ChunkLayout& layout, const std::vector<int>& layer_calls);
  void empty_slot(const ChunkLayout& layout, const std::vector<int>& layer_calls, int head_call);
  Step embedding_step(int32_t block) const;
  Step layer_step(size_t chunk, const ChunkLayout& layout, int64_t index, int32_t block) const;

  const StageShape& shape_;
  const ArenaMap& arena_;
  BlockStore& store_;
  std::map<std::string, int32_t> shared_;
  int64_t outgoing_buffers_ = 1;                        ///< of each chunk and direction
  std::vector<int64_t> hidden_zones_, gradient_zones_;  ///< by chunk: offset in scratch, -1: none that outlives a list
  int64_t zones_bytes_ = 0;

  // Of the list under construction.
  CallSequence list_;
  std::array<Bucket, 2> buckets_;  ///< of experts the second
};

}  // namespace foresail
