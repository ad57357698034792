// What every engine checks about the member lists it is given, so that all refuse the same mistakes.
#pragma once

#include <vector>

#include "core/error.h"

namespace foresail {

/// Throws (a programmer's error) unless every group is non-empty, ascending and within [0, world_size).
inline void check_groups(const std::vector<std::vector<int>>& groups, int world_size) {
  for (const std::vector<int>& members : groups) {
    ensure(!members.empty(), "a communication group has at least one member");
    int previous = -1;
    for (int member : members) {
      ensure(member > previous, "members of a communication group are ascending world ranks");
      ensure(member < world_size, "members of a communication group are ranks of the run");
      previous = member;
    }
  }
}

}  // namespace foresail
