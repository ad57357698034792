#include "tests/equivalence/generator/covering.h"

#include <algorithm>
#include <iterator>

#include "core/philox.h"

namespace foresail::testing {
namespace {

Factor factor_at(size_t index) { return static_cast<Factor>(index); }

/// A draw that depends only on the seed and how many were drawn before.
class Draw {
 public:
  explicit Draw(uint64_t seed) : seed_(seed) {}
  size_t below(size_t limit) { return random_bits(seed_, 0, next_++) % limit; }

 private:
  uint64_t seed_, next_ = 0;
};

/// Every possible combination of the structural factors, the others at their first value.
std::vector<Row> possible_structures() {
  std::vector<Row> rows;
  Row row;
  while (true) {
    if (structure_is_possible(row)) rows.push_back(row);
    size_t f = 0;
    while (f < kStructuralFactors && ++row.values[f] == values_of(factor_at(f)).size()) row.values[f++] = 0;
    if (f == kStructuralFactors) return rows;
  }
}

const std::vector<Row>& structures() {
  static const std::vector<Row> rows = possible_structures();
  return rows;
}

/// Which pairs appeared, by number of pair.
class Coverage {
 public:
  Coverage() {
    size_t values = 0;
    for (size_t f = 0; f < kFactors; ++f) {
      begin_[f] = values;
      values += values_of(factor_at(f)).size();
    }
    values_ = values;
    covered_.assign(values * values, false);
  }

  bool has(const ValuePair& pair) const {
    return covered_[place(static_cast<size_t>(pair.first), pair.first_value, static_cast<size_t>(pair.second),
                          pair.second_value)];
  }
  size_t add(const Row& row) {
    const size_t gained = gain(row);
    for_pairs(row, [&](size_t at) { covered_[at] = true; });
    return gained;
  }
  size_t gain(const Row& row) const {
    size_t count = 0;
    for_pairs(row, [&](size_t at) { count += covered_[at] ? 0 : 1; });
    return count;
  }

 private:
  size_t place(size_t f, uint8_t a, size_t g, uint8_t b) const { return (begin_[f] + a) * values_ + begin_[g] + b; }
  template <typename Body>
  void for_pairs(const Row& row, const Body& body) const {
    for (size_t f = 0; f < kFactors; ++f) {
      for (size_t g = f + 1; g < kFactors; ++g) body(place(f, row.values[f], g, row.values[g]));
    }
  }

  std::array<size_t, kFactors> begin_{};
  size_t values_ = 0;
  std::vector<bool> covered_;
};

int64_t ranks_of(const Row& row) {
  static const int64_t context[] = {1, 2, 4, 2};
  return int64_t{row[Factor::dp] + 1} * (row[Factor::tp] + 1) * (row[Factor::pp] + 1) * context[row[Factor::context]];
}

/// The rest of a row beside its structure, drawn until it is possible.
Row with_rest(Row row, Draw& draw) {
  do {
    for (size_t f = kStructuralFactors; f < kFactors; ++f) {
      row.values[f] = static_cast<uint8_t>(draw.below(values_of(factor_at(f)).size()));
    }
  } while (!rest_is_possible(row));
  return row;
}

/// Possible rows that contain the pair, at most `most`; empty: there are none.
std::vector<Row> candidates_for(const ValuePair& pair, size_t most, Draw& draw) {
  const auto structural = [](Factor factor) { return static_cast<size_t>(factor) < kStructuralFactors; };
  std::vector<Row> found;
  const size_t start = draw.below(structures().size());
  for (size_t i = 0; i < structures().size() && found.size() < most; ++i) {
    Row row = structures()[(start + i * 7919) % structures().size()];
    if (structural(pair.first) && row[pair.first] != pair.first_value) continue;
    if (structural(pair.second) && row[pair.second] != pair.second_value) continue;
    for (int attempt = 0; attempt < 4; ++attempt) {
      Row whole = with_rest(row, draw);
      if (!structural(pair.first)) whole[pair.first] = pair.first_value;
      if (!structural(pair.second)) whole[pair.second] = pair.second_value;
      if (!rest_is_possible(whole)) continue;
      found.push_back(whole);
      break;
    }
  }
  return found;
}

/// Ranks share two cores: a case on eight of them must cover much to be worth its time.
double worth(const Coverage& coverage, const Row& row) {
  return static_cast<double>(coverage.gain(row)) - 6.0 * static_cast<double>(ranks_of(row));
}

}  // namespace

std::string text_of(const ValuePair& pair) {
  return std::string(name_of(pair.first)) + " " + values_of(pair.first)[pair.first_value] + " with " +
         name_of(pair.second) + " " + values_of(pair.second)[pair.second_value];
}

bool contains(const Row& row, const ValuePair& pair) {
  return row[pair.first] == pair.first_value && row[pair.second] == pair.second_value;
}

std::vector<ValuePair> all_pairs() {
  std::vector<ValuePair> pairs;
  for (size_t f = 0; f < kFactors; ++f) {
    for (size_t g = f + 1; g < kFactors; ++g) {
      for (size_t a = 0; a < values_of(factor_at(f)).size(); ++a) {
        for (size_t b = 0; b < values_of(factor_at(g)).size(); ++b) {
          pairs.push_back({factor_at(f), factor_at(g), static_cast<uint8_t>(a), static_cast<uint8_t>(b)});
        }
      }
    }
  }
  return pairs;
}

std::vector<Row> covering_rows(uint64_t seed, size_t count) {
  Draw draw(seed);
  Coverage coverage;
  std::vector<Row> rows;
  for (const ValuePair& pair : all_pairs()) {
    if (coverage.has(pair)) continue;
    const std::vector<Row> candidates = candidates_for(pair, 40, draw);
    if (candidates.empty()) continue;
    const auto best = std::max_element(candidates.begin(), candidates.end(), [&](const Row& a, const Row& b) {
      return worth(coverage, a) < worth(coverage, b);
    });
    coverage.add(*best);
    rows.push_back(*best);
  }
  while (rows.size() < count) {
    const Row row = with_rest(structures()[draw.below(structures().size())], draw);
    if (ranks_of(row) <= 4 && std::find(rows.begin(), rows.end(), row) == rows.end()) rows.push_back(row);
  }
  return rows;
}

}  // namespace foresail::testing
