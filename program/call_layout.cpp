#include "program/call_layout.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/round_up.h"
#include "program/pack.h"

namespace foresail {
namespace {

void set_register(Call& call, Register base, const PackItem& item, int64_t delta) {
  const auto index = static_cast<size_t>(base);
  call.base[index] = item.offset - delta;
  call.anchors[index] = item.space == PackSpace::hole ? Anchor::slot : Anchor::scratch;
}

}  // namespace

int CallSequence::add_item(int64_t bytes) {
  items.push_back({bytes, static_cast<int>(calls.size()), -1});
  return static_cast<int>(items.size()) - 1;
}

int CallSequence::add(PlannedCall planned) {
  const int index = static_cast<int>(calls.size());
  for (const Binding& binding : planned.bindings) {
    SharedItem& item = items.at(static_cast<size_t>(binding.item));
    if (item.last < 0) item.first = index;
    item.last = std::max(item.last, index);
  }
  calls.push_back(std::move(planned));
  return index;
}

void place_scratch(CallSequence& sequence, int64_t alignment) {
  std::vector<PackItem> items;
  for (const SharedItem& item : sequence.items) {
    const int64_t bytes = item.last < 0 ? 0 : round_up(item.bytes, alignment);  // 0: nothing uses it
    items.push_back({bytes, item.first, item.last});
  }
  const size_t shared = items.size();
  for (size_t c = 0; c < sequence.calls.size(); ++c) {
    const int at = static_cast<int>(c);
    items.push_back({round_up(sequence.calls[c].scratch_bytes, alignment), at, at});
  }
  for (const SlotUse& use : sequence.slot_uses) {
    if (use.bytes > 0) items.push_back({use.bytes, use.first, use.last, false, PackSpace::hole, use.offset});
  }
  ensure(fixed_items_fit(items), "kept activations never overlap");
  const PackResult packed = pack(items, sequence.slot_bytes);
  for (size_t c = 0; c < sequence.calls.size(); ++c) {
    PlannedCall& planned = sequence.calls[c];
    set_register(planned.call, Register::scratch, packed.items[shared + c], 0);
    for (const Binding& binding : planned.bindings) {
      set_register(planned.call, binding.base, packed.items[static_cast<size_t>(binding.item)], binding.delta);
    }
  }
  sequence.scratch_bytes = packed.scratch_end;
}

void relocate_scratch(CallSequence& sequence, int64_t scratch_offset) {
  for (PlannedCall& planned : sequence.calls) {
    Call& call = planned.call;
    for (size_t r = 0; r < call.base.size(); ++r) {
      if (call.anchors[r] == Anchor::scratch) call.base[r] += scratch_offset;
    }
  }
}

void relocate_zones(CallSequence& sequence, int64_t zones_offset) {
  for (PlannedCall& planned : sequence.calls) {
    for (const ZoneBinding& zone : planned.zones) {
      planned.call.base[static_cast<size_t>(zone.base)] = zones_offset + zone.offset;
      planned.call.anchors[static_cast<size_t>(zone.base)] = zone.anchor;
    }
  }
}

}  // namespace foresail
