// Where the rows of a tensor stand: which position of its sequence and which row of the global batch each one is. The
// rows that a rank holds depend on the context-parallel rank (zigzag, ops/zigzag.h) and, under sequence parallelism, on
// the tensor rank. All back ends take rows and positions from here.
#pragma once

#include <cstdint>

#include "core/error.h"
#include "ops/op.h"
#include "ops/step_inputs.h"
#include "ops/zigzag.h"

namespace foresail {

/// Positions of a whole sequence.
inline int64_t whole_length(const OpAttributes& attributes) {
  return attributes.sequence_length * attributes.context_parallel;
}

/// Why `rows` rows cannot be placed by these attributes, or null.
inline const char* row_map_fault(const OpAttributes& attributes, int64_t rows) {
  if (attributes.sequence_length < 1) return "attribute sequence_length is not positive";
  if (attributes.context_parallel < 1) return "attribute context_parallel is not positive";
  if (attributes.context_parallel > 1 && attributes.sequence_length % 2 != 0)
    return "a context-parallel rank holds two equal chunks of a sequence, and the sequence length is odd";
  if (!attributes.rows_cut && rows % attributes.sequence_length != 0) return "the rows are not whole sequences";
  return nullptr;
}

/// The places of the rows of one tensor [rows, ..]. Local rows are sequence-major: S of each sequence. Under sequence
/// parallelism (`rows_cut`) the tensor holds the tensor_rank-th share of them.
class RowMap {
 public:
  RowMap(const OpAttributes& attributes, const KernelContext& context, int64_t rows)
      : first_local_(attributes.rows_cut ? context.tensor_rank * rows : 0),
        per_sequence_(attributes.sequence_length),
        context_size_(attributes.context_parallel),
        context_rank_(context_size_ > 1 ? context.context_rank : 0),
        first_row_(context.first_row) {
    ensure(row_map_fault(attributes, rows) == nullptr, "the rows of an operator have places in the batch");
    ensure(context_rank_ < context_size_, "the context rank is one of the degree");
  }

  /// Position in the whole sequence, 0 .. S C - 1.
  int64_t position(int64_t row) const {
    return zigzag_position(context_rank_, context_size_, per_sequence_, (first_local_ + row) % per_sequence_);
  }
  /// Sequence of the micro-batch.
  int64_t sequence(int64_t row) const { return (first_local_ + row) / per_sequence_; }
  /// Row of the global batch: sequence index x whole length + position.
  int64_t global_row(int64_t row) const {
    return first_row_ + sequence(row) * per_sequence_ * context_size_ + position(row);
  }
  /// Number of the tensor's row 0 among the rows that the tensor-parallel group holds.
  int64_t first_local() const { return first_local_; }

 private:
  int64_t first_local_, per_sequence_, context_size_, context_rank_, first_row_;
};

}  // namespace foresail
