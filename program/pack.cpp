#include "program/pack.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <utility>

namespace foresail {
namespace {

constexpr int kShuffledOrders = 96;

bool alive_together(const PackItem& a, const PackItem& b) { return a.first <= b.last && b.first <= a.last; }

/// Lowest offset in `space` at which `item` overlaps no placed item that lives at the same time.
int64_t lowest_offset(const std::vector<PackItem>& items, const PackItem& item, PackSpace space) {
  std::vector<std::pair<int64_t, int64_t>> taken;
  for (const PackItem& other : items) {
    if (other.space == space && alive_together(other, item))
      taken.emplace_back(other.offset, other.offset + other.bytes);
  }
  std::sort(taken.begin(), taken.end());
  int64_t offset = 0;
  for (const auto& [first, end] : taken) {
    if (offset + item.bytes <= first) break;
    offset = std::max(offset, end);
  }
  return offset;
}

PackResult pack_in_order(const std::vector<PackItem>& items, const std::vector<size_t>& order, int64_t hole_bytes) {
  PackResult result{items};
  for (const PackItem& item : items) {
    if (item.space == PackSpace::scratch) result.scratch_end = std::max(result.scratch_end, item.offset + item.bytes);
  }
  for (const size_t index : order) {
    PackItem& item = result.items[index];
    const int64_t hole = lowest_offset(result.items, item, PackSpace::hole);
    if (!item.carried && hole + item.bytes <= hole_bytes) {
      item.space = PackSpace::hole;
      item.offset = hole;
      continue;
    }
    const PackSpace space = item.carried ? PackSpace::carried : PackSpace::scratch;
    item.offset = lowest_offset(result.items, item, space);
    item.space = space;
    int64_t& end = item.carried ? result.carried_end : result.scratch_end;
    end = std::max(end, item.offset + item.bytes);
  }
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
  PackResult best;
  best.scratch_end = best.carried_end = std::numeric_limits<int64_t>::max();
  const auto attempt = [&] {
    PackResult result = pack_in_order(items, order, hole_bytes);
    if (std::pair(result.carried_end, result.scratch_end) < std::pair(best.carried_end, best.scratch_end)) {
      best = std::move(result);
    }
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
    const auto previous = std::pair(best.carried_end, best.scratch_end);
    if (attempt()) return best;
    const bool helped = std::pair(best.carried_end, best.scratch_end) < previous;
    if (!helped && i % 8 != 7) order = before;  // keep what helped, wander now and then
  }
  return best;
}

}  // namespace foresail
