#include "program/slots.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

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

int64_t place_by_time(const std::vector<Chunk>& chunks, std::vector<ScheduleEntry>& entries) {
  std::map<Key, const ScheduleEntry*> last_entry;
  for (const ScheduleEntry& entry : entries) last_entry[{entry.chunk, entry.micro_batch}] = &entry;
  FirstFit range;
  std::map<Key, std::pair<int64_t, int64_t>> held;  // slot, carried slot
  for (ScheduleEntry& entry : entries) {
    const Key key{entry.chunk, entry.micro_batch};
    const Chunk& chunk = chunks[static_cast<size_t>(entry.chunk)];
    const bool ends = last_entry.at(key) == &entry;
    if (entry.phase == Phase::forward) held[key].first = range.take(chunk.slot_bytes);
    const bool carries = chunk.carried_bytes > 0;
    if (carries && entry.phase == Phase::backward) held[key].second = range.take(chunk.carried_bytes);
    std::tie(entry.slot_offset, entry.carried_offset) = held.at(key);
    if (!ends) continue;
    range.give_back(entry.slot_offset, chunk.slot_bytes);
    if (carries && entry.phase == Phase::weight_gradient) range.give_back(entry.carried_offset, chunk.carried_bytes);
  }
  return range.end();
}

/// Every chunk has its own range, cut into as many slots as it needs.
int64_t place_by_chunk(const std::vector<Chunk>& chunks, std::vector<ScheduleEntry>& entries) {
  std::vector<std::pair<int64_t, int64_t>> begins;
  int64_t end = 0;
  for (const Chunk& chunk : chunks) {
    const int64_t carried = end + chunk.slots * chunk.slot_bytes;
    begins.emplace_back(end, carried);
    end = carried + chunk.carried_slots * chunk.carried_bytes;
  }
  for (ScheduleEntry& entry : entries) {
    const auto at = static_cast<size_t>(entry.chunk);
    entry.slot_offset = begins[at].first + entry.slot * chunks[at].slot_bytes;
    entry.carried_offset = begins[at].second + entry.carried_slot * chunks[at].carried_bytes;
  }
  return end;
}

}  // namespace

int64_t place_slots(const std::vector<Chunk>& chunks, std::vector<ScheduleEntry>& entries) {
  std::vector<ScheduleEntry> by_chunk = entries;
  const int64_t apart = place_by_chunk(chunks, by_chunk);
  const int64_t together = place_by_time(chunks, entries);
  if (together <= apart) return together;
  entries = std::move(by_chunk);
  return apart;
}

}  // namespace foresail
