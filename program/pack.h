// Offline dynamic storage allocation: items with sizes and lifetimes are given offsets so that no two live at once
// overlap. Greedy first fit under several orders, the best taken (the problem is NP-hard; Robson 1974, Sekiyama et al.
// 2018, "Profile-guided memory optimization").
#pragma once

#include <cstdint>
#include <vector>

namespace foresail {

enum class PackSpace : uint8_t { unplaced, hole, scratch, carried };

struct PackItem {
  int64_t bytes = 0;  ///< a multiple of the alignment
  int first = 0, last = 0;
  bool carried = false;                   ///< must lie in the hole or the carried space
  PackSpace space = PackSpace::unplaced;  ///< given: the item is fixed at `offset` of that space
  int64_t offset = 0;
};

struct PackResult {
  std::vector<PackItem> items;  ///< all placed
  int64_t scratch_end = 0, carried_end = 0;
};

/// Whether no two items that come with a place overlap while both live.
bool fixed_items_fit(const std::vector<PackItem>& items);

/// The hole space holds `hole_bytes`; scratch and the carried space are open-ended. Minimises the ends of both;
/// deterministic.
PackResult pack(const std::vector<PackItem>& items, int64_t hole_bytes);

}  // namespace foresail
