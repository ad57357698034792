#include "program/call_layout.h"

#include <algorithm>

#include "core/error.h"
#include "core/round_up.h"
#include "program/pack.h"

namespace foresail {
namespace {

int64_t& base_of(Call& call, Register base) { return call.base[static_cast<size_t>(base)]; }

}  // namespace

int CallSequence::add_item(int64_t bytes, std::optional<int64_t> offset) {
  items.push_back({bytes, static_cast<int>(calls.size()), -1, offset});
  return static_cast<int>(items.size()) - 1;
}

void CallSequence::add(Call call, int64_t scratch_bytes, std::vector<Binding> bindings) {
  const int index = static_cast<int>(calls.size());
  for (const Binding& binding : bindings) {
    ScratchItem& item = items.at(static_cast<size_t>(binding.item));
    if (item.last < 0) item.first = std::min(item.first, index);
    item.last = std::max(item.last, index);
  }
  calls.push_back({call, scratch_bytes, std::move(bindings)});
}

void CallSequence::hold_from_begin(int item) {
  items.at(static_cast<size_t>(item)).first = 0;
  items[static_cast<size_t>(item)].last = std::max(items[static_cast<size_t>(item)].last, 0);
}

void CallSequence::hold_to_end(int item) {
  items.at(static_cast<size_t>(item)).last = static_cast<int>(calls.size()) - 1;
}

int64_t place_scratch(CallSequence& sequence, int64_t alignment) {
  std::vector<PackItem> items;
  for (const ScratchItem& item : sequence.items) {
    PackItem packed{round_up(item.bytes, alignment), item.first, item.last};
    if (item.offset) packed.space = PackSpace::scratch, packed.offset = *item.offset;
    if (item.last < 0) packed.bytes = 0;  // nothing uses it
    items.push_back(packed);
  }
  const size_t shared = items.size();
  for (size_t c = 0; c < sequence.calls.size(); ++c) {
    const int at = static_cast<int>(c);
    items.push_back({round_up(sequence.calls[c].scratch_bytes, alignment), at, at});
  }
  ensure(fixed_items_fit(items), "scratch shared with other lists never overlaps");
  const PackResult packed = pack(items, 0);
  for (size_t c = 0; c < sequence.calls.size(); ++c) {
    PlannedCall& planned = sequence.calls[c];
    base_of(planned.call, Register::scratch) = packed.items[shared + c].offset;
    for (const Binding& binding : planned.bindings) {
      base_of(planned.call, binding.base) = packed.items[static_cast<size_t>(binding.item)].offset - binding.delta;
    }
  }
  return packed.scratch_end;
}

void relocate_scratch(CallSequence& sequence, int64_t scratch_offset) {
  for (PlannedCall& planned : sequence.calls) {
    base_of(planned.call, Register::scratch) += scratch_offset;
    for (const Binding& binding : planned.bindings) base_of(planned.call, binding.base) += scratch_offset;
  }
}

}  // namespace foresail
