// Sets of bytes as disjoint intervals, for the static checks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

#include "program/program.h"

namespace foresail {

/// Half-open intervals; neighbours are merged.
class IntervalSet {
 public:
  void add(int64_t begin, int64_t end) {
    if (begin >= end) return;
    auto at = ranges_.lower_bound(begin);
    if (at != ranges_.begin() && std::prev(at)->second >= begin) --at;
    while (at != ranges_.end() && at->first <= end) {
      begin = std::min(begin, at->first);
      end = std::max(end, at->second);
      at = ranges_.erase(at);
    }
    ranges_[begin] = end;
  }

  void remove(int64_t begin, int64_t end) {
    auto at = first_overlapping(begin);
    while (at != ranges_.end() && at->first < end) {
      const auto [from, to] = *at;
      at = ranges_.erase(at);
      if (from < begin) ranges_[from] = begin;
      if (to > end) ranges_[end] = to;
    }
  }

  bool covers(int64_t begin, int64_t end) const {
    const auto at = ranges_.upper_bound(begin);
    return at != ranges_.begin() && std::prev(at)->second >= end;
  }

  bool overlaps(int64_t begin, int64_t end) const {
    const auto at = ranges_.lower_bound(end);
    return at != ranges_.begin() && std::prev(at)->second > begin;
  }

  std::vector<Segment> segments() const {
    std::vector<Segment> list;
    for (const auto& [begin, end] : ranges_) list.push_back({begin, end - begin});
    return list;
  }

  bool empty() const { return ranges_.empty(); }

 private:
  std::map<int64_t, int64_t>::iterator first_overlapping(int64_t begin) {
    auto at = ranges_.upper_bound(begin);
    if (at != ranges_.begin() && std::prev(at)->second > begin) --at;
    return at;
  }

  std::map<int64_t, int64_t> ranges_;
};

}  // namespace foresail
