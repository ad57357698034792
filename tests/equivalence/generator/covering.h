// Rows in which every possible pair of factor values appears (Cohen et al. 1997, "The AETG system": greedy covering).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/equivalence/generator/factors.h"

namespace foresail::testing {

/// Two values of two factors.
struct ValuePair {
  Factor first{}, second{};
  uint8_t first_value = 0, second_value = 0;
  bool operator==(const ValuePair&) const = default;
};
std::string text_of(const ValuePair& pair);

/// Whether both values are in the row.
bool contains(const Row& row, const ValuePair& pair);

/// Every pair of values of different factors.
std::vector<ValuePair> all_pairs();

/// Rows that cover every possible pair, then further possible ones, `count` in all or as many as covering takes; few of
/// them need more than four ranks. The same seed gives the same rows.
std::vector<Row> covering_rows(uint64_t seed, size_t count);

}  // namespace foresail::testing
