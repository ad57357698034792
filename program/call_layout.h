// The second level of the layout: what lives from one call of a list to another (gathered parameters, transient gradients,
// the gradient of the hidden states) and each call's own scratch are packed into the scratch segment by lifetime.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "program/program.h"

namespace foresail {

/// A piece of scratch that several calls of a list share.
struct ScratchItem {
  int64_t bytes = 0;
  int first = 0, last = -1;       ///< calls of the list, inclusive; empty until something is bound to it
  std::optional<int64_t> offset;  ///< given where messages or other lists must find it
};

/// `base` of the call is the item's address minus `delta`.
struct Binding {
  Register base{};
  int item = 0;
  int64_t delta = 0;
};

struct PlannedCall {
  Call call;
  int64_t scratch_bytes = 0;  ///< of the block's own temporaries
  std::vector<Binding> bindings;
};

/// The calls of one phase and chunk while they are put together.
struct CallSequence {
  std::vector<PlannedCall> calls;
  std::vector<ScratchItem> items;

  int add_item(int64_t bytes, std::optional<int64_t> offset = {});
  /// Appends a call; the items of its bindings live at least until then.
  void add(Call call, int64_t scratch_bytes, std::vector<Binding> bindings = {});
  /// The item is in use from the begin of the list on, or to its end: other lists touch it.
  void hold_from_begin(int item);
  void hold_to_end(int item);
};

/// Sets the registers of every call, relative to the start of the scratch segment; returns the bytes of scratch needed.
int64_t place_scratch(CallSequence& sequence, int64_t alignment);

/// Adds the start of the scratch segment.
void relocate_scratch(CallSequence& sequence, int64_t scratch_offset);

}  // namespace foresail
