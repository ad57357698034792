// One change to a compiled Program: each must be refused by the static checks, change the time or memory that the
// simulator predicts, or change what the executor computes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program/program.h"

namespace foresail::testing {

enum class MutationKind : uint8_t {
  removed,  ///< an instruction is left out
  swapped,  ///< an instruction and the next one of its block, one of which writes what the other touches
  resized,  ///< a buffer's first dimension is halved, or doubled where it is odd
};

struct Mutation {
  MutationKind kind{};
  int32_t stage = 0;  ///< the Program of which stage is changed, on all of its ranks
  int32_t block = 0;
  int32_t at = 0;  ///< instruction; of `resized` the buffer
};

/// Every mutation of the blocks that a step executes. Neighbours that touch nothing in common are left out: in either
/// order they are the same Program (independent_swaps lists them).
std::vector<Mutation> mutations_of(const std::vector<Program>& stages, MutationKind kind);

/// Neighbours on one queue that touch no byte in common: their order means nothing.
std::vector<Mutation> independent_swaps(const std::vector<Program>& stages);

void mutate(Program& program, const Mutation& mutation);

std::string text_of(const std::vector<Program>& stages, const Mutation& mutation);

}  // namespace foresail::testing
