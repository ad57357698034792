#include "program/pack.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <utility>

namespace foresail {
namespace {

constexpr int kShuffledOrders = 96;

bool alive_together(const PackItem& a, const PackItem& b) { return a.first <= b.last && b.first <= a.last; }

/// The placed items of one space, by begin and end: what an item must not overlap is found without sorting anew.
class Taken {
 public:
  void add(const PackItem& item) {
    const Range range{item.offset, item.offset + item.bytes, item.first, item.last};
    const auto at = std::upper_bound(ranges_.begin(), ranges_.end(), range, [](const Range& a, const Range& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
    });
    ranges_.insert(at, range);
  }

  /// Lowest offset at which `item` overlaps nothing that lives at the same time.
  int64_t lowest_offset(const PackItem& item) const {
    int64_t offset = 0;
    for (const Range& range : ranges_) {
      if (range.first > item.last || item.first > range.last) continue;
      if (offset + item.bytes <= range.begin) break;
      offset = std::max(offset, range.end);
    }
    return offset;
  }

 private:
  struct Range {
    int64_t begin = 0, end = 0;
    int first = 0, last = 0;
  };
  std::vector<Range> ranges_;
};

/// Of every space.
using TakenSpaces = std::array<Taken, 4>;
Taken& of(TakenSpaces& spaces, PackSpace space) { return spaces[static_cast<size_t>(space)]; }

TakenSpaces fixed_items(const std::vector<PackItem>& items) {
  TakenSpaces spaces;
  for (const PackItem& item : items) {
    if (item.space != PackSpace::unplaced) of(spaces, item.space).add(item);
  }
  return spaces;
}

/// Where the open-ended spaces end: what is minimised.
using Ends = std::pair<int64_t, int64_t>;
Ends ends_of(const PackResult& result) { return {result.carried_end, result.scratch_end}; }

/// None as soon as it is certain not to end below `ends`: most orders show that after a few large items.
std::optional<PackResult> pack_in_order(const std::vector<PackItem>& items, TakenSpaces taken,
                                        const std::vector<size_t>& order, int64_t hole_bytes, const Ends& ends) {
  PackResult result{items};
  for (const PackItem& item : items) {
    if (item.space == PackSpace::scratch) result.scratch_end = std::max(result.scratch_end, item.offset + item.bytes);
  }
  for (const size_t index : order) {
    PackItem& item = result.items[index];
    item.space = PackSpace::hole;
    if (!item.carried) item.offset = of(taken, PackSpace::hole).lowest_offset(item);
    if (item.carried || item.offset + item.bytes > hole_bytes) {
      item.space = item.carried ? PackSpace::carried : PackSpace::scratch;
      item.offset = of(taken, item.space).lowest_offset(item);
      int64_t& end = item.carried ? result.carried_end : result.scratch_end;
      end = std::max(end, item.offset + item.bytes);
      if (ends_of(result) >= ends) return std::nullopt;
    }
    of(taken, item.space).add(item);
  }
  if (ends_of(result) >= ends) return std::nullopt;
  return result;
}

/// No placement can end lower: all live bytes at one instant must fit into the holes and scratch.
int64_t lower_bound(const std::vector<PackItem>& items, int64_t hole_bytes) {
  int64_t bound = 0;
  for (const PackItem& at : items) {
    int64_t live = 0;
    for (const PackItem& item : items) {
      if (!item.carried && item.first <= at.first && at.first <= item.last) live += item.bytes;
    }
    bound = std::max(bound, live - hole_bytes);
    if (at.space == PackSpace::scratch) bound = std::max(bound, at.offset + at.bytes);
  }
  return bound;
}

/// Carried items all live at the end.
int64_t carried_bound(const std::vector<PackItem>& items) {
  int64_t carried = 0;
  for (const PackItem& item : items) carried += item.carried ? item.bytes : 0;
  return carried;
}

}  // namespace

bool fixed_items_fit(const std::vector<PackItem>& items) {
  for (size_t i = 0; i < items.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const PackItem &a = items[i], &b = items[j];
      if (a.space == PackSpace::unplaced || a.space != b.space || !alive_together(a, b)) continue;
      if (a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes) return false;
    }
  }
  return true;
}

PackResult pack(const std::vector<PackItem>& items, int64_t hole_bytes) {
  std::vector<size_t> order;
  for (size_t i = 0; i < items.size(); ++i) {
    if (items[i].space == PackSpace::unplaced) order.push_back(i);
  }
  const int64_t bound = lower_bound(items, hole_bytes);
  const int64_t least_carried = carried_bound(items);
  const TakenSpaces fixed = fixed_items(items);
  PackResult best;
  best.scratch_end = best.carried_end = std::numeric_limits<int64_t>::max();
  const auto attempt = [&] {
    auto result = pack_in_order(items, fixed, order, hole_bytes, ends_of(best));
    if (result) best = std::move(*result);
    return best.carried_end <= least_carried && best.scratch_end <= bound;
  };
  using Key = std::function<double(const PackItem&)>;
  const Key keys[] = {
      [](const PackItem& item) { return -static_cast<double>(item.bytes); },
      [](const PackItem& item) { return -static_cast<double>(item.bytes) * (item.last - item.first + 1); },
      [](const PackItem& item) { return static_cast<double>(item.first); },
      [](const PackItem& item) { return -static_cast<double>(item.last); },
  };
  for (const Key& key : keys) {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(items[a]) < key(items[b]); });
    if (attempt()) return best;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return keys[0](items[a]) < keys[0](items[b]); });
  std::minstd_rand random(1);
  for (int i = 0; i < kShuffledOrders; ++i) {
    if (order.size() < 2) break;
    const std::vector<size_t> before = order;
    const size_t a = random() % order.size();
    const size_t b = random() % order.size();
    std::swap(order[a], order[b]);
    const Ends previous = ends_of(best);
    if (attempt()) return best;
    const bool helped = ends_of(best) < previous;
    if (!helped && i % 8 != 7) order = before;  // keep what helped, wander now and then
  }
  return best;
}

}  // namespace foresail
