// The second level of the layout: what lives from one call of a list to another (gathered parameters, transient gradients,
// the gradient of the hidden states) and each call's own scratch are packed by lifetime, into parts of the micro-batch's
// slot that hold nothing at that time and into scratch.
#pragma once

#include <cstdint>
#include <vector>

#include "program/program.h"

namespace foresail {

/// A piece of memory that several calls of a list share.
struct SharedItem {
  int64_t bytes = 0;
  int first = 0, last = -1;  ///< calls of the list, inclusive; empty until something is bound to it
};

/// `base` of the call is the item's address minus `delta`.
struct Binding {
  Register base{};
  int item = 0;
  int64_t delta = 0;
};

/// `base` of the call is an address in the scratch segment that outlives the list.
struct ZoneBinding {
  Register base{};
  int64_t offset = 0;
  Anchor anchor = Anchor::none;
};

/// Bytes of the slot that hold something during some calls.
struct SlotUse {
  int64_t offset = 0, bytes = 0;
  int first = 0, last = 0;
};

struct PlannedCall {
  Call call;
  int64_t scratch_bytes = 0;  ///< of the block's own temporaries
  std::vector<Binding> bindings;
  std::vector<ZoneBinding> zones;
};

/// The calls of one phase and chunk while they are put together.
struct CallSequence {
  std::vector<PlannedCall> calls;
  std::vector<SharedItem> items;
  std::vector<SlotUse> slot_uses;
  int64_t slot_bytes = 0;     ///< of the chunk's slots; 0: nothing else is placed in them
  int64_t scratch_bytes = 0;  ///< set by `place_scratch`

  int add_item(int64_t bytes);
  /// Appends a call; the items of its bindings live at least until then. Returns its position.
  int add(PlannedCall planned);
};

/// Sets `scratch` and the bound registers of every call, relative to their anchors, and the scratch that the list needs.
void place_scratch(CallSequence& sequence, int64_t alignment);

/// Makes the registers of a list that belongs to no micro-batch final: its scratch begins at `scratch_offset`.
void relocate_scratch(CallSequence& sequence, int64_t scratch_offset);
/// Makes the registers of zones final up to their anchor.
void relocate_zones(CallSequence& sequence, int64_t zones_offset);

}  // namespace foresail
