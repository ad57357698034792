#include "runtime/tokenizer/merge_table.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace foresail {
namespace {

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

// Applies merges to the linked list of a word's symbols.
class WordMerger {
 public:
  WordMerger(const MergeTable& merges, MergeScratch& scratch) : merges_(merges), scratch_(scratch) {}

  void start(std::span<const int32_t> word) {
    const auto length = static_cast<int32_t>(word.size());
    scratch_.symbols.clear();
    scratch_.queue.clear();
    for (int32_t i = 0; i < length; ++i) {
      scratch_.symbols.push_back({word[static_cast<size_t>(i)], i - 1, i + 1 < length ? i + 1 : -1});
    }
    for (int32_t i = 0; i < length; ++i) offer(i);
  }

  void run() {
    while (!scratch_.queue.empty()) {
      std::pop_heap(scratch_.queue.begin(), scratch_.queue.end(), std::greater<>());
      const uint64_t top = scratch_.queue.back();
      scratch_.queue.pop_back();
      merge(static_cast<int32_t>(top & 0xFFFFFFFFU), static_cast<uint32_t>(top >> 32));
    }
  }

 private:
  MergeScratch::Symbol& at(int32_t position) { return scratch_.symbols[static_cast<size_t>(position)]; }

  /// Queues the pair that begins at `position`, if it merges.
  void offer(int32_t position) {
    const auto& left = at(position);
    if (left.next < 0) return;
    const MergeTable::Merge merge = merges_.find(left.id, at(left.next).id);
    if (merge.rank == MergeTable::kNone) return;
    scratch_.queue.push_back(static_cast<uint64_t>(merge.rank) << 32 | static_cast<uint32_t>(position));
    std::push_heap(scratch_.queue.begin(), scratch_.queue.end(), std::greater<>());
  }

  void merge(int32_t position, uint32_t rank) {
    auto& left = at(position);
    if (left.id < 0 || left.next < 0) return;
    auto& right = at(left.next);
    const MergeTable::Merge merge = merges_.find(left.id, right.id);
    if (merge.rank != rank) return;  // queued before one of the two changed
    left.id = merge.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) at(left.next).previous = position;
    if (left.previous >= 0) offer(left.previous);
    offer(position);
  }

  const MergeTable& merges_;
  MergeScratch& scratch_;
};

}  // namespace

MergeTable::MergeTable(size_t merges) : slots_(std::bit_ceil(2 * merges + 2)) {}

size_t MergeTable::slot_of(uint64_t pair) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = static_cast<size_t>((pair * 0x9E3779B97F4A7C15U) >> 32) & mask;  // Fibonacci hashing
  while (slots_[slot].pair != kFree && slots_[slot].pair != pair) slot = (slot + 1) & mask;
  return slot;
}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t pair = pair_of(left, right);
  slots_[slot_of(pair)] = {pair, merge};
}

MergeTable::Merge MergeTable::find(int32_t left, int32_t right) const {
  return slots_[slot_of(pair_of(left, right))].merge;
}

void merge_word(const MergeTable& merges, std::span<const int32_t> word, MergeScratch& scratch,
                std::vector<int32_t>& ids) {
  WordMerger merger(merges, scratch);
  merger.start(word);
  merger.run();
  if (word.empty()) return;
  for (int32_t at = 0; at >= 0; at = scratch.symbols[static_cast<size_t>(at)].next) {
    ids.push_back(scratch.symbols[static_cast<size_t>(at)].id);
  }
}

}  // namespace foresail
