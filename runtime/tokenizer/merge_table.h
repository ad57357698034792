// Byte-pair encoding of one word: the merges of a vocabulary, and their application by rank.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace foresail {

/// Pairs of ids and what they become. Open addressing: the one table that a word which is not cached meets at every step.
class MergeTable {
 public:
  struct Merge {
    uint32_t rank = kNone;
    int32_t id = -1;
  };
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

  explicit MergeTable(size_t merges);
  /// The last merge of a pair counts, as in Hugging Face's table.
  void insert(int32_t left, int32_t right, Merge merge);
  /// rank kNone if the pair does not merge.
  Merge find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t pair = kFree;
    Merge merge;
  };
  static constexpr uint64_t kFree = ~uint64_t{0};
  size_t slot_of(uint64_t pair) const;

  std::vector<Slot> slots_;  ///< a power of two, at most half full
};

/// Scratch memory of merge_word, kept between words.
struct MergeScratch {
  struct Symbol {
    int32_t id, previous, next;  ///< neighbours by position; -1: none. id -1: merged into its left neighbour
  };
  std::vector<Symbol> symbols;
  std::vector<uint64_t> queue;  ///< heap of rank << 32 | position, smallest first
};

/// Merges the pair of lowest rank, leftmost first, until none is left, and appends the ids. Time n log n.
void merge_word(const MergeTable& merges, std::span<const int32_t> word, MergeScratch& scratch,
                std::vector<int32_t>& ids);

}  // namespace foresail
