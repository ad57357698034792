#include "program/slots.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "program/pack.h"

namespace foresail {
namespace {

/// First fit in the order of time: optimal for slots of one size, because it never holds more than are in flight.
class FirstFit {
 public:
  int64_t take(int64_t bytes) {
    auto hole = std::find_if(free_.begin(), free_.end(), [&](const auto& entry) { return entry.second >= bytes; });
    if (hole == free_.end()) {
      int64_t begin = end_;
      if (!free_.empty() && free_.rbegin()->first + free_.rbegin()->second == end_) {
        begin = free_.rbegin()->first;
        free_.erase(std::prev(free_.end()));
      }
      end_ = begin + bytes;
      return begin;
    }
    const auto [begin, size] = *hole;
    free_.erase(hole);
    if (size > bytes) free_[begin + bytes] = size - bytes;
    return begin;
  }

  void give_back(int64_t begin, int64_t bytes) {
    if (bytes == 0) return;
    auto entry = free_.emplace(begin, bytes).first;
    const auto next = std::next(entry);
    if (next != free_.end() && entry->first + entry->second == next->first) {
      entry->second += next->second;
      free_.erase(next);
    }
    if (entry == free_.begin()) return;
    const auto previous = std::prev(entry);
    if (previous->first + previous->second == entry->first) {
      previous->second += entry->second;
      free_.erase(entry);
    }
  }

  int64_t end() const { return end_; }

 private:
  std::map<int64_t, int64_t> free_;  // begin -> bytes
  int64_t end_ = 0;
};

using Key = std::pair<int32_t, int32_t>;  // chunk, micro-batch

/// Bytes that a micro-batch holds from its first to its last entry in some phases.
struct Held {
  Key key;
  int64_t ScheduleEntry::*offset = nullptr;  ///< where the entries find them
  int64_t bytes = 0;
  std::vector<int> entries;  ///< ascending

  int first() const { return entries.front(); }
  int last() const { return entries.back(); }
};

/// Which phases take and give back the parts of a slot.
struct SlotPart {
  int64_t ScheduleEntry::*offset;
  int64_t Chunk::*bytes;
  Phase taken, given_back;
};
constexpr SlotPart kParts[] = {
    {&ScheduleEntry::slot_offset, &Chunk::slot_bytes, Phase::forward, Phase::backward},
    {&ScheduleEntry::delayed_offset, &Chunk::delayed_bytes, Phase::forward, Phase::weight_gradient},
    {&ScheduleEntry::carried_offset, &Chunk::carried_bytes, Phase::backward, Phase::weight_gradient},
};

/// In the order in which they are taken.
std::vector<Held> held_parts(const std::vector<Chunk>& chunks, const std::vector<ScheduleEntry>& entries) {
  std::vector<Held> all;
  std::map<std::pair<Key, size_t>, size_t> open;
  for (int e = 0; e < static_cast<int>(entries.size()); ++e) {
    const ScheduleEntry& entry = entries[static_cast<size_t>(e)];
    const Key key{entry.chunk, entry.micro_batch};
    for (size_t p = 0; p < std::size(kParts); ++p) {
      const int64_t bytes = chunks[static_cast<size_t>(entry.chunk)].*kParts[p].bytes;
      if (bytes > 0 && entry.phase == kParts[p].taken) {
        open[{key, p}] = all.size();
        all.push_back({key, kParts[p].offset, bytes, {}});
      }
      const auto found = open.find({key, p});
      if (found != open.end() && entry.phase <= kParts[p].given_back) all[found->second].entries.push_back(e);
    }
  }
  return all;
}

void set_offset(std::vector<ScheduleEntry>& entries, const Held& held, int64_t offset) {
  for (const int e : held.entries) entries[static_cast<size_t>(e)].*held.offset = offset;
}

/// Scratch follows all slots.
int64_t with_scratch_behind(int64_t slots, const ListScratch& scratch, std::vector<ScheduleEntry>& entries) {
  int64_t most = 0;
  for (ScheduleEntry& entry : entries) {
    entry.scratch_offset = slots;
    most = std::max(most, scratch.at({entry.phase, entry.chunk}));
  }
  return slots + most;
}

int64_t place_by_time(const std::vector<Held>& slots, const ListScratch& scratch, std::vector<ScheduleEntry>& entries) {
  FirstFit range;
  std::multimap<int, size_t> ends;  // last entry -> slot
  std::vector<int64_t> offsets(slots.size());
  size_t next = 0;
  for (int e = 0; e < static_cast<int>(entries.size()); ++e) {
    for (; next < slots.size() && slots[next].first() == e; ++next) {
      offsets[next] = range.take(slots[next].bytes);
      set_offset(entries, slots[next], offsets[next]);
      ends.emplace(slots[next].last(), next);
    }
    const auto [begin, end] = ends.equal_range(e);
    for (auto at = begin; at != end; ++at) range.give_back(offsets[at->second], slots[at->second].bytes);
  }
  return with_scratch_behind(range.end(), scratch, entries);
}

/// Slots and scratch packed together, entry by entry: the most scratch is seldom needed when the most slots are taken.
int64_t place_packed(const std::vector<Held>& slots, const ListScratch& scratch, std::vector<ScheduleEntry>& entries) {
  std::vector<PackItem> items;
  for (const Held& held : slots) items.push_back({held.bytes, held.first(), held.last()});
  for (int e = 0; e < static_cast<int>(entries.size()); ++e) {
    const ScheduleEntry& entry = entries[static_cast<size_t>(e)];
    items.push_back({scratch.at({entry.phase, entry.chunk}), e, e});
  }
  const PackResult packed = pack(items, 0);
  for (size_t i = 0; i < slots.size(); ++i) set_offset(entries, slots[i], packed.items[i].offset);
  for (size_t e = 0; e < entries.size(); ++e) entries[e].scratch_offset = packed.items[slots.size() + e].offset;
  return packed.scratch_end;
}

/// Every chunk has its own range, cut into as many slots as it needs.
int64_t place_by_chunk(const std::vector<Chunk>& chunks, const ListScratch& scratch,
                       std::vector<ScheduleEntry>& entries) {
  int64_t end = 0;
  for (size_t c = 0; c < chunks.size(); ++c) {
    const Chunk& chunk = chunks[c];
    const int64_t delayed = end + chunk.slots * chunk.slot_bytes;
    const int64_t carried = delayed + chunk.slots * chunk.delayed_bytes;
    for (ScheduleEntry& entry : entries) {
      if (static_cast<size_t>(entry.chunk) != c) continue;
      entry.slot_offset = end + entry.slot * chunk.slot_bytes;
      entry.delayed_offset = delayed + entry.slot * chunk.delayed_bytes;
      entry.carried_offset = carried + entry.carried_slot * chunk.carried_bytes;
    }
    end = carried + chunk.carried_slots * chunk.carried_bytes;
  }
  return with_scratch_behind(end, scratch, entries);
}

/// Beyond this, packing takes longer than it saves: long steps repeat themselves, and their peak is their pattern's.
constexpr size_t kMostPacked = 160;

}  // namespace

int64_t place_slots(const std::vector<Chunk>& chunks, const ListScratch& scratch, std::vector<ScheduleEntry>& entries) {
  const std::vector<Held> slots = held_parts(chunks, entries);
  int64_t least = std::numeric_limits<int64_t>::max();
  std::vector<ScheduleEntry> best;
  const auto attempt = [&](const auto& place) {
    std::vector<ScheduleEntry> placed = entries;
    const int64_t bytes = place(placed);
    if (bytes >= least) return;
    least = bytes;
    best = std::move(placed);
  };
  attempt([&](auto& placed) { return place_by_time(slots, scratch, placed); });
  attempt([&](auto& placed) { return place_by_chunk(chunks, scratch, placed); });
  if (slots.size() + entries.size() <= kMostPacked) {
    attempt([&](auto& placed) { return place_packed(slots, scratch, placed); });
  }
  entries = std::move(best);
  return least;
}

int64_t kept_bytes(const Program& program) {
  std::vector<ScheduleEntry> entries;
  for (const ScheduleEntry& entry : program.schedule) {
    if (entry.micro_batch >= 0) entries.push_back(entry);
  }
  std::vector<int64_t> change(entries.size() + 1);
  for (const Held& held : held_parts(program.chunks, entries)) {
    change[static_cast<size_t>(held.first())] += held.bytes;
    change[static_cast<size_t>(held.last()) + 1] -= held.bytes;
  }
  int64_t now = 0, most = 0;
  for (const int64_t bytes : change) most = std::max(most, now += bytes);
  return most;
}

}  // namespace foresail
