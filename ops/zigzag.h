// Which positions of a sequence a context-parallel rank holds. A sequence is cut into 2C equal chunks; rank r of C holds
// chunk r, then chunk 2C - 1 - r, so that causal attention costs every rank the same (Llama 3, 2024, section 3.3.2).
// Loader, embeddings and attention all take positions from here.
#pragma once

#include <cstdint>

namespace foresail {

/// Position in the whole sequence (of `rows_per_sequence` x `context_size` positions) of a row that `context_rank` holds.
/// `rows_per_sequence`: rows of each sequence on one rank, even if `context_size` > 1.
constexpr int64_t zigzag_position(int64_t context_rank, int64_t context_size, int64_t rows_per_sequence,
                                  int64_t row_in_sequence) {
  if (context_size == 1) return row_in_sequence;
  const int64_t chunk = rows_per_sequence / 2;
  if (row_in_sequence < chunk) return context_rank * chunk + row_in_sequence;
  return (2 * context_size - 1 - context_rank) * chunk + (row_in_sequence - chunk);
}

}  // namespace foresail
