#include "tests/equivalence/part_of_world.h"

#include <exception>

#include "core/error.h"

namespace foresail::testing {

void PartOfWorld::create_groups(const std::vector<std::vector<int>>&) {
  ensure(false, "the world creates the groups of all its parts at once");
}

void PartOfWorld::abort(const std::string& message) {
  world_.abort(message);
  std::terminate();  // the compiler does not see that the call above never returns
}

std::vector<std::vector<int>> moved_to(const std::vector<std::vector<int>>& groups, int first) {
  std::vector<std::vector<int>> moved = groups;
  for (std::vector<int>& members : moved) {
    for (int& member : members) member += first;
  }
  return moved;
}

}  // namespace foresail::testing
