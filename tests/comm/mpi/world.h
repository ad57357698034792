// The communicators under test: every check runs on both reduction paths, with pieces small enough that buffers of a
// few hundred kilobytes take many.
#pragma once

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/mpi_options.h"

namespace foresail {

inline std::vector<int> range_of_ranks(int begin, int end) {
  std::vector<int> ranks;
  for (int rank = begin; rank < end; ++rank) ranks.push_back(rank);
  return ranks;
}

struct World {
  std::unique_ptr<Communicator> comm;
  std::vector<std::vector<int>> groups;

  explicit World(const MpiOptions& options) : comm(make_mpi_communicator(options)) {
    const int size = comm->size();
    groups.push_back(range_of_ranks(0, size));
    for (int rank = 0; rank < size; ++rank) groups.push_back({rank});
    if (size > 2) {
      groups.push_back(range_of_ranks(1, size));
      groups.push_back({0, size - 1});
      groups.push_back(range_of_ranks(0, size));  // the same members again
    }
    if (size == 4) {
      groups.push_back({0, 2});
      groups.push_back({1, 3});
    }
    comm->create_groups(groups);
  }

  template <typename Body>
  void for_each_group(const Body& body) {
    for (GroupId group = 0; group < static_cast<GroupId>(groups.size()); ++group) {
      if (comm->group_rank(group) >= 0) body(group, groups[static_cast<size_t>(group)]);
    }
  }
};

inline std::vector<MpiOptions> all_options() {
  return {{true, int64_t{512} << 10},  {true, 4096},  {true, 64},
          {false, int64_t{512} << 10}, {false, 4096}, {false, 64}};
}

/// The contribution of world rank `rank`: values whose sum depends on the order in which they are added.
template <typename T>
std::vector<T> contribution(int rank, int64_t count, int round = 0) {
  std::mt19937_64 random(static_cast<uint64_t>(rank * 1000 + round));
  std::vector<T> values(static_cast<size_t>(count));
  for (T& value : values) {
    const double exponent = std::uniform_real_distribution<double>(-8, 8)(random);
    value = static_cast<T>(std::uniform_real_distribution<double>(-1, 1)(random) * std::exp2(exponent) * 1000);
  }
  return values;
}

/// The sum in rank order: the definition of the result, to the bit.
template <typename T>
std::vector<T> sum_in_rank_order(const std::vector<int>& members, int64_t count, int round = 0) {
  std::vector<T> total = contribution<T>(members.front(), count, round);
  for (size_t each = 1; each < members.size(); ++each) {
    const std::vector<T> next = contribution<T>(members[each], count, round);
    for (size_t i = 0; i < total.size(); ++i) total[i] = static_cast<T>(total[i] + next[i]);
  }
  return total;
}

template <typename T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, double>) return DType::f64;
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  return DType::i32;
}

}  // namespace foresail
